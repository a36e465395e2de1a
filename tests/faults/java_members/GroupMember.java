// A member of a group with Java's client, of either protocol; ../group_member.py has its events.
//
// Arguments: bootstrap, topic, group, name, turn, strategy, and the instance id of a static member.
// The strategy is an assignor of the classic protocol, or "consumer" for the consumer protocol.

import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.UnreleasedInstanceIdException;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public final class GroupMember implements ConsumerRebalanceListener {
    private static final String CONSUMER = "consumer";
    private static final Map<String, String> ASSIGNORS = Map.of(
        "range", "RangeAssignor",
        "roundrobin", "RoundRobinAssignor",
        "cooperative-sticky", "CooperativeStickyAssignor");
    private static final Duration POLL = Duration.ofMillis(100);
    private static final Duration COMMIT_MAX = Duration.ofSeconds(5);
    private static final int NO_RESPONSE = -1;
    private static final PrintStream OUT =
        new PrintStream(System.out, false, StandardCharsets.UTF_8);

    private final String topic;
    private final String name;
    private final boolean isIncremental;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final Map<Integer, Long> positions = new TreeMap<>();
    private volatile boolean running = true;
    private int commits;

    private GroupMember(String[] words) {
        topic = words[1];
        name = words[3] + "/" + words[4];
        String strategy = words[5];
        isIncremental = strategy.equals(CONSUMER) || strategy.equals("cooperative-sticky");
        Properties settings = new Properties();
        settings.put("bootstrap.servers", words[0]);
        settings.put("group.id", words[2]);
        settings.put("client.id", words[3]);
        settings.put("key.deserializer", ByteArrayDeserializer.class);
        settings.put("value.deserializer", ByteArrayDeserializer.class);
        settings.put("max.poll.interval.ms", System.getProperty("max.poll.interval.ms"));
        settings.put("max.poll.records", System.getProperty("max.poll.records"));
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        settings.put("reconnect.backoff.max.ms", 100);
        settings.put("group.protocol", strategy.equals(CONSUMER) ? CONSUMER : "classic");
        if (!strategy.equals(CONSUMER)) {
            String assignor = "org.apache.kafka.clients.consumer." + ASSIGNORS.get(strategy);
            settings.put("partition.assignment.strategy", assignor);
            settings.put("session.timeout.ms", System.getProperty("session.timeout.ms"));
            settings.put("heartbeat.interval.ms", System.getProperty("heartbeat.interval.ms"));
        }
        if (words.length > 6) {
            settings.put("group.instance.id", words[6]);
        }
        consumer = new KafkaConsumer<>(settings);
    }

    public static void main(String[] words) {
        GroupMember member = new GroupMember(words);
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> member.end(main)));
        int code = 1;
        try {
            member.run();
            code = 0;
        } catch (RuntimeException fault) {
            Throwable expected = expected(fault);
            if (expected != null) {
                tell("error", text(expected));
                code = 0;
            } else {
                tell("error", text(fault));
                fault.printStackTrace();
            }
        } finally {
            // System.exit would wait for the hook, which waits for this thread.
            Runtime.getRuntime().halt(code);
        }
    }

    /** Leaves the group; the JVM would end with the signal's number as soon as this returns. */
    private void end(Thread main) {
        running = false;
        try {
            main.join();
        } catch (InterruptedException fault) {
            Runtime.getRuntime().halt(1);
        }
    }

    private void run() {
        consumer.subscribe(List.of(topic), this);
        try {
            while (running) {
                read();
                commit(positions, true);
            }
        } finally {
            consumer.close();
        }
    }

    private void read() {
        Map<Integer, Long> first = new TreeMap<>();
        Map<Integer, Long> last = new TreeMap<>();
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
            first.putIfAbsent(record.partition(), record.offset());
            last.put(record.partition(), record.offset());
        }
        last.forEach((partition, offset) -> {
            tell("read", partition, first.get(partition), offset);
            positions.put(partition, offset + 1);
        });
    }

    /** Commits positions; those of which a commit failed stay in the map if `retry`. */
    private void commit(Map<Integer, Long> offsets, boolean retry) {
        for (Map.Entry<Integer, Long> each : new TreeMap<>(offsets).entrySet()) {
            commits++;
            String word = name + "/" + commits;
            int code = commitOffset(each.getKey(), each.getValue(), word);
            tell("commit", each.getKey(), each.getValue(), word, code);
            if (retry && code == 0) {
                offsets.remove(each.getKey(), each.getValue());
            }
        }
    }

    private int commitOffset(int partition, long offset, String word) {
        TopicPartition place = new TopicPartition(topic, partition);
        OffsetAndMetadata at = new OffsetAndMetadata(offset, Optional.empty(), word);
        try {
            consumer.commitSync(Map.of(place, at), COMMIT_MAX);
            return 0;
        } catch (CommitFailedException fault) {
            return Errors.ILLEGAL_GENERATION.code();
        } catch (RebalanceInProgressException | FencedInstanceIdException fault) {
            return Errors.forException(fault).code();
        } catch (RetriableException fault) {
            return NO_RESPONSE;
        } catch (InterruptException fault) {
            throw fault;
        } catch (KafkaException fault) {
            tell("error", "commit: " + text(fault));
            return NO_RESPONSE;
        }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
        if (!isIncremental) {
            positions.clear();
        }
        tell("assigned", numbers(assigned));
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
        List<Integer> going = numbers(revoked);
        Map<Integer, Long> offsets = new TreeMap<>(positions);
        offsets.keySet().retainAll(going);
        commit(offsets, false);
        positions.keySet().removeAll(going);
        tell("revoked", going);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> lost) {
        List<Integer> gone = numbers(lost);
        positions.keySet().removeAll(gone);
        tell("lost", gone);
    }

    private static List<Integer> numbers(Collection<TopicPartition> places) {
        return places.stream().map(TopicPartition::partition).collect(Collectors.toList());
    }

    /** Returns the cause if the faults of the test explain it; `close` may fail for it as well. */
    private static Throwable expected(Throwable fault) {
        for (Throwable each = fault; each != null; each = each.getCause()) {
            // Another member has the same instance id, or the group became a classic one after the
            // session of this member, which was paused.
            if (each instanceof FencedInstanceIdException
                    || each instanceof UnreleasedInstanceIdException
                    || each instanceof GroupIdNotFoundException) {
                return each;
            }
        }
        return null;
    }

    private static String text(Throwable fault) {
        return fault.getClass().getSimpleName() + ": " + fault.getMessage();
    }

    /** Writes an event as a JSON list; ends if nobody reads it any more. */
    private static void tell(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) {
            line.append(line.length() == 0 ? "[" : ", ");
            line.append(word instanceof String ? quoted((String) word) : word.toString());
        }
        OUT.println(line.append("]"));
        if (OUT.checkError()) {
            Runtime.getRuntime().halt(1);
        }
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            if (each == '"' || each == '\\') {
                quoted.append('\\').append(each);
            } else {
                quoted.append(each < ' ' ? ' ' : each);
            }
        }
        return quoted.append('"').toString();
    }
}
