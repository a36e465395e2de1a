// A producer that sends on until it is told to end.

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

final class Streams {
    private static final int IN_FLIGHT_MAX = 500;
    private static final int TURN_MS = 20;

    private final Semaphore room = new Semaphore(IN_FLIGHT_MAX);
    private List<Object> acked = new ArrayList<>();
    private KafkaProducer<byte[], byte[]> producer;
    private String topic;
    private int partitions;
    private long sent;
    private boolean awake;

    void enter(Map<String, Lines.Order> orders) {
        orders.put("stream", this::stream);
        orders.put("unstream", this::unstream);
    }

    boolean awake() {
        return awake;
    }

    void sleep() {
        awake = false;
    }

    private Object stream(JsonNode order) {
        Properties words = Settings.producer(order);
        words.put("enable.idempotence", true);
        words.put("linger.ms", 1);
        producer = new KafkaProducer<>(words);
        topic = order.get("topic").asText();
        partitions = order.get("partitions").asInt();
        sent = 0;
        awake = true;
        return null;
    }

    void turn() throws InterruptedException {
        if (!awake) {
            return;
        }
        // As many as there is room for; where there is none, a moment's wait for some.
        for (int count = 0; count < IN_FLIGHT_MAX; count++) {
            if (!room.tryAcquire(count == 0 ? TURN_MS : 0, TimeUnit.MILLISECONDS)) {
                break;
            }
            send();
        }
        tell();
    }

    private void send() {
        int partition = (int) (sent % partitions);
        String value = Long.toString(sent++);
        byte[] bytes = value.getBytes(StandardCharsets.US_ASCII);
        producer.send(new ProducerRecord<>(topic, partition, null, bytes), (place, fault) -> {
            room.release();
            if (fault == null) {
                heard(List.of(place.partition(), place.offset(), value));
            } else {
                Lines.say("fault", Lines.worded(fault));
            }
        });
    }

    private synchronized void heard(List<Object> line) {
        acked.add(line);
    }

    private synchronized void tell() {
        if (!acked.isEmpty()) {
            Lines.say("acked", acked);
            acked = new ArrayList<>();
        }
    }

    private Object unstream(JsonNode order) {
        awake = false;
        producer.flush();
        producer.close();
        tell();
        return sent;
    }
}
