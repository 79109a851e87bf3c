package equipoise.harness;

import java.io.PrintStream;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

/** Events on their way to standard output, from several threads; written soon after, so that no callback waits for a pipe. */
final class Lines {
    private static final long FLUSH_MS = 10;

    private final PrintStream out;
    private StringBuilder waiting = new StringBuilder();
    private boolean isReady = false;

    Lines(PrintStream out) {
        this.out = out;
        Executors.newSingleThreadScheduledExecutor(
                        work -> {
                            Thread thread = new Thread(work, "lines");
                            thread.setDaemon(true);
                            return thread;
                        })
                .scheduleWithFixedDelay(this::flushOrEnd, FLUSH_MS, FLUSH_MS, TimeUnit.MILLISECONDS);
    }

    /** Notes an event; `fields` is what the functions below make. */
    synchronized void add(String event, String fields, long atNs) {
        isReady |= event.equals("ready");
        waiting.append("{\"event\": \"").append(event).append('"').append(fields).append(", \"at_ns\": ").append(atNs).append("}\n");
    }

    synchronized boolean isReady() {
        return isReady;
    }

    /** Writes what waits, in the order of `add`. */
    void flush() {
        synchronized (out) {
            String text;
            synchronized (this) {
                text = waiting.toString();
                waiting = new StringBuilder();
            }
            out.print(text);
            out.flush();
        }
    }

    private void flushOrEnd() {
        flush();
        if (out.checkError()) {
            Runtime.getRuntime().halt(1); // Nobody reads us any more.
        }
    }

    static String text(String name, String value) {
        return ", \"" + name + "\": " + quoted(value);
    }

    static String texts(String name, List<String> values) {
        return ", \"" + name + "\": [" + values.stream().map(Lines::quoted).collect(Collectors.joining(", ")) + "]";
    }

    static String number(String name, long value) {
        return ", \"" + name + "\": " + value;
    }

    private static String quoted(String value) {
        String escaped = value.replace("\\", "\\\\").replace("\"", "\\\"");
        return '"' + escaped.replaceAll("\\p{Cntrl}", " ") + '"';
    }
}
