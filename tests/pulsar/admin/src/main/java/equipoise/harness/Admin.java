package equipoise.harness;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.function.Supplier;
import org.apache.pulsar.admin.cli.PulsarAdminTool;
import org.apache.pulsar.client.admin.PulsarAdminException;
import picocli.CommandLine;
import picocli.CommandLine.IExecutionExceptionHandler;
import picocli.CommandLine.Model.ArgSpec;
import picocli.CommandLine.Model.CommandSpec;

/** Runs many command lines of pulsar-admin in one JVM; README.md of the harness has the contract. */
public final class Admin extends PulsarAdminTool {
    private static final ObjectMapper JSON = new ObjectMapper();

    private Admin(Properties properties) throws Exception {
        super(properties);
    }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("webServiceUrl", arguments[0]);
        PrintStream answers = System.out;
        InputStream requests = System.in;
        // A command that asks back gets the end of its input.
        System.setIn(new ByteArrayInputStream(new byte[0]));
        Admin tool = new Admin(properties);
        List<Map<String, Object>> commands = new ArrayList<>();
        describe(tool.commander, commands);
        answers.println(JSON.writeValueAsString(commands));
        BufferedReader lines = new BufferedReader(new InputStreamReader(requests, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            answers.println(JSON.writeValueAsString(tool.answer(JSON.readValue(line, String[].class))));
        }
        // As the tool itself: the threads of its client would take their time.
        Runtime.getRuntime().halt(0);
    }

    /** Runs one command line, and returns what a process of its own would leave behind. */
    private Map<String, Object> answer(String[] words) throws Exception {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        if (words.length > 0 && commandMap.containsKey(words[0])) {
            renew(words[0]);
        }
        commander.setOut(new PrintWriter(System.out, true));
        commander.setErr(new PrintWriter(System.err, true));
        // The tool prints the reason of an answer only.
        int[] status = {0};
        IExecutionExceptionHandler handler = commander.getExecutionExceptionHandler();
        commander.setExecutionExceptionHandler(
                (error, command, parsed) -> {
                    status[0] = error instanceof PulsarAdminException refused ? refused.getStatusCode() : 0;
                    return handler.handleExecutionException(error, command, parsed);
                });
        int code = 1;
        try {
            code = run(words) ? 0 : 1;
        } catch (Throwable error) {
            error.printStackTrace(); // As Java does with what main throws.
        } finally {
            commander.setExecutionExceptionHandler(handler);
        }
        System.out.flush();
        System.err.flush();
        return Map.of("code", code, "status", status[0], "out", out.toString(StandardCharsets.UTF_8), "err", err.toString(StandardCharsets.UTF_8));
    }

    /** Replaces a group of commands, which keep the values of their options. A new tool would take ten times as long. */
    private void renew(String group) throws Exception {
        commander.getCommandSpec().removeSubcommand(group);
        Object commands = commandMap.get(group).getConstructor(Supplier.class).newInstance(pulsarAdminSupplier);
        Method add = PulsarAdminTool.class.getDeclaredMethod("addCommand", String.class, Object.class);
        add.setAccessible(true);
        add.invoke(this, group, commands);
    }

    /** Adds a command, or those below it. */
    private static void describe(CommandLine command, List<Map<String, Object>> commands) {
        CommandSpec spec = command.getCommandSpec();
        if (command.getSubcommands().isEmpty()) {
            commands.add(
                    Map.of(
                            "name", spec.qualifiedName(" ").substring("pulsar-admin ".length()),
                            "aliases", List.of(spec.aliases()),
                            "hidden", spec.usageMessage().hidden(),
                            "options", spec.options().stream().map(option -> List.of(option.names())).toList(),
                            "parameters", spec.positionalParameters().stream().map(ArgSpec::paramLabel).toList()));
        }
        // A command with an alias is there twice.
        command.getSubcommands().values().stream().distinct().forEach(each -> describe(each, commands));
    }
}
