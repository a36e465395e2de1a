// The Java client as a program over JSON lines; ../driven.py tells what its orders are.
//
// It is compiled and started by ../java.py.  One thread takes the orders and does what they say,
// since a consumer belongs to one thread; while the program is awake it takes its turns between them.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.protocol.Errors;

public final class Lines {
    /** What an order does; the answer is whatever JSON can tell. */
    interface Order {
        Object answer(JsonNode said) throws Exception;
    }

    static final ObjectMapper JSON = new ObjectMapper();
    static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    private final Map<String, Order> orders = new HashMap<>();
    private final Streams streams = new Streams();
    private final Groups groups = new Groups();
    private final Transactions transactions = new Transactions(groups);

    private Lines() {
        Records.enter(orders);
        Topics.enter(orders);
        GroupAdmin.enter(orders);
        streams.enter(orders);
        groups.enter(orders);
        new ShareGroups().enter(orders);
        transactions.enter(orders);
    }

    public static void main(String[] arguments) throws Exception {
        // What a library prints is not for whoever reads our lines.
        System.setOut(System.err);
        new Lines().serve();
    }

    private void serve() throws Exception {
        LinkedBlockingQueue<String> lines = new LinkedBlockingQueue<>();
        Thread listener = new Thread(() -> listen(lines));
        listener.setDaemon(true);
        listener.start();
        while (true) {
            boolean awake = streams.awake() || groups.awake();
            String line = awake ? lines.poll() : lines.take();
            if (line == null) {
                turn();
            } else {
                answer(JSON.readTree(line));
            }
        }
    }

    private static void listen(LinkedBlockingQueue<String> lines) {
        try (BufferedReader in =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                lines.put(line);
            }
        } catch (Exception fault) {
            System.err.println(fault);
        }
        // Nobody waits for what the client would tidy up.
        Runtime.getRuntime().halt(0);
    }

    private void turn() {
        try {
            streams.turn();
            groups.turn();
        } catch (Exception fault) {
            streams.sleep();
            groups.sleep();
            say(Map.of("fault", worded(fault)));
        }
    }

    private void answer(JsonNode order) {
        Map<String, Object> told = new HashMap<>();
        try {
            told.put("answer", orders.get(order.get("do").asText()).answer(order));
        } catch (Exception fault) {
            Throwable cause = fault instanceof ExecutionException ? fault.getCause() : fault;
            Map<String, Object> refused = new HashMap<>();
            refused.put("code", code(cause));
            refused.put("text", worded(cause));
            told.put("refused", refused);
        }
        say(told);
    }

    /** The broker's error code, where that is what the fault is about. */
    private static Short code(Throwable fault) {
        if (fault instanceof OffsetOutOfRangeException) {
            return Errors.OFFSET_OUT_OF_RANGE.code();
        }
        short code = Errors.forException(fault).code();
        return fault instanceof ApiException && code != -1 ? code : null;
    }

    static synchronized void say(Map<String, ?> told) {
        try {
            OUT.println(JSON.writeValueAsString(told));
        } catch (Exception fault) {
            throw new IllegalStateException(fault);
        }
    }

    static void say(String what, Object told) {
        say(Collections.singletonMap(what, told));
    }

    static String worded(Throwable fault) {
        return fault.getClass().getSimpleName() + ": " + fault.getMessage();
    }

    static byte[] raw(JsonNode told) {
        return told.isNull() ? null : told.asText().getBytes(StandardCharsets.ISO_8859_1);
    }

    static String text(byte[] content) {
        return content == null ? null : new String(content, StandardCharsets.ISO_8859_1);
    }
}
