package equipoise.harness;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.function.Supplier;
import org.apache.pulsar.admin.cli.PulsarAdminTool;
import org.apache.pulsar.client.admin.PulsarAdminException;
import picocli.CommandLine;
import picocli.CommandLine.IExecutionExceptionHandler;

/** Runs many command lines of pulsar-admin in one JVM; README.md of the harness has the contract. */
public final class Admin extends PulsarAdminTool {
    private static final ObjectMapper JSON = new ObjectMapper();

    private Admin(Properties properties) throws Exception {
        super(properties);
    }

    public static void main(String[] arguments) {
        try {
            answerAll(arguments[0]);
        } catch (Exception error) {
            error.printStackTrace();
        }
        // As the tool itself: the threads of its client would keep the process alive.
        Runtime.getRuntime().halt(0);
    }

    private static void answerAll(String url) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("webServiceUrl", url);
        PrintStream answers = System.out;
        InputStream requests = System.in;
        // A command that asks back gets the end of its input.
        System.setIn(new ByteArrayInputStream(new byte[0]));
        Admin tool = new Admin(properties);
        List<Map<String, Object>> commands = new ArrayList<>();
        describe("", tool.commander, commands);
        answers.println(JSON.writeValueAsString(commands));
        BufferedReader lines = new BufferedReader(new InputStreamReader(requests, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            answers.println(JSON.writeValueAsString(tool.answer(JSON.readValue(line, String[].class))));
        }
    }

    /** Runs one command line, and returns what a process of its own would leave behind. */
    private Map<String, Object> answer(String[] words) throws Exception {
        // Options of the tool itself may come first.
        for (String group : Arrays.stream(words).filter(commandMap::containsKey).limit(1).toList()) {
            renew(group);
        }
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
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
        Constructor<?> constructor = commandMap.get(group).getConstructor(Supplier.class);
        constructor.setAccessible(true); // Not every class is public.
        Object commands = constructor.newInstance(pulsarAdminSupplier);
        Method add = PulsarAdminTool.class.getDeclaredMethod("addCommand", String.class, Object.class);
        add.setAccessible(true);
        add.invoke(this, group, commands);
    }

    /** Adds a command, or those below it, under each of their names. */
    private static void describe(String name, CommandLine command, List<Map<String, Object>> commands) {
        if (command.getSubcommands().isEmpty()) {
            List<List<String>> options = command.getCommandSpec().options().stream().map(option -> List.of(option.names())).toList();
            commands.add(Map.of("name", name.strip(), "options", options));
        }
        command.getSubcommands().forEach((word, each) -> describe(name + " " + word, each, commands));
    }
}
