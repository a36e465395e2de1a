// kafkajs as a program that driven.py drives: it says what each order and each answer is.
//
// kafkajs reads in groups only, so `consume` is a group of its own for as long as it takes.

"use strict";

const { createRequire } = require("module");
const readline = require("readline");

const installed = createRequire(process.argv[2] + "/");
const kafkajs = installed("kafkajs");
const zstd = installed("@bokuweb/zstd-wasm");

const { AssignerProtocol, CompressionTypes, CompressionCodecs, ConfigResourceTypes } = kafkajs;
const CODECS = { none: 0, gzip: 1, snappy: 2, zstd: 4 };
const IN_FLIGHT_MAX = 500;
const TURN_MS = 20;
const CONSUME_MS_MAX = 45000;
const QUICK = { initialRetryTime: 20, maxRetryTime: 200, retries: 12 };
const KINDS = { topic: ConfigResourceTypes.TOPIC, broker: ConfigResourceTypes.BROKER };

CompressionCodecs[CompressionTypes.Snappy] = installed("kafkajs-snappy");
const zstdReady = zstd.init();
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => {
    await zstdReady;
    return Buffer.from(zstd.compress(encoder.buffer));
  },
  decompress: async (buffer) => {
    await zstdReady;
    return Buffer.from(zstd.decompress(buffer));
  },
});

// Settings are librdkafka's; those named here have no word of kafkajs's, and need none.
const PASSED_OVER = new Set(["message.max.bytes", "message.timeout.ms", "max.poll.interval.ms"]);
const CONSUMER = {
  "fetch.wait.max.ms": ["maxWaitTimeInMs", Number],
  "fetch.max.bytes": ["maxBytes", Number],
  "max.partition.fetch.bytes": ["maxBytesPerPartition", Number],
  "session.timeout.ms": ["sessionTimeout", Number],
  "client.rack": ["rackId", String],
  "isolation.level": ["readUncommitted", (value) => value === "read_uncommitted"],
  "heartbeat.interval.ms": ["heartbeatInterval", Number],
  "partition.assignment.strategy": [
    "partitionAssigners",
    () => [kafkajs.PartitionAssigners.roundRobin],
  ],
};
const RUN = {
  "enable.auto.commit": ["autoCommit", (value) => value === "true"],
  "auto.commit.interval.ms": ["autoCommitInterval", Number],
};
const CLIENT = { "client.id": ["clientId", String] };
const START = { "auto.offset.reset": ["fromBeginning", (value) => value === "earliest"] };

function translated(settings, table) {
  const words = {};
  for (const [name, value] of Object.entries(settings)) {
    if (name in table) {
      const [word, meant] = table[name];
      words[word] = meant(value);
    } else if (![CONSUMER, RUN, CLIENT, START].some((other) => name in other)) {
      if (!PASSED_OVER.has(name)) throw new Error(`no word for ${name}`);
    }
  }
  return words;
}

const say = (told) => process.stdout.write(JSON.stringify(told) + "\n");
const raw = (told) => (told === null ? null : Buffer.from(told, "latin1"));
const text = (content) => (content == null ? null : Buffer.from(content).toString("latin1"));
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function client(bootstrap, words = {}) {
  return new kafkajs.Kafka({
    brokers: [bootstrap],
    logLevel: kafkajs.logLevel.NOTHING,
    retry: QUICK,
    ...words,
  });
}

function producerOf(kafka, words = {}) {
  return kafka.producer({
    createPartitioner: kafkajs.Partitioners.DefaultPartitioner,
    retry: QUICK,
    ...words,
  });
}

// What goes in and out.

function sent([value, key, headers, timestamp], partition) {
  const message = { value: raw(value), key: raw(key), headers: {} };
  for (const [name, content] of headers) message.headers[name] = raw(content);
  if (timestamp) message.timestamp = String(timestamp);
  if (partition >= 0) message.partition = partition;
  return message;
}

async function produce({ bootstrap, topic, records, partition, settings }) {
  const idempotent = settings["enable.idempotence"] === "true";
  const acks = { 0: 0, 1: 1, all: -1 }[settings.acks ?? "all"];
  const compression = CODECS[settings["compression.type"] ?? "none"];
  // It sends what it is given as one batch a partition.
  const count = Number(settings["batch.num.messages"] ?? 100);
  const producer = producerOf(client(bootstrap), idempotent ? { idempotent } : {});
  await producer.connect();
  try {
    for (let at = 0; at < records.length; at += count) {
      const messages = records.slice(at, at + count).map((record) => sent(record, partition));
      await producer.send({ topic, acks, compression, messages });
    }
  } finally {
    await producer.disconnect();
  }
}

async function ends(bootstrap, topic, partition) {
  const found = await (await admin(bootstrap)).fetchTopicOffsets(topic);
  const { low, high } = found.find((place) => place.partition === partition);
  return [Number(low), Number(high)];
}

async function offsetOf(bootstrap, topic, partition, start, low, high) {
  if (start === "beginning") return low;
  if (start === "end") return high;
  if (typeof start === "number") return start >= 0 ? start : Math.max(low, high + start);
  const at = Number(start.slice(2));
  const found = await (await admin(bootstrap)).fetchTopicOffsetsByTimestamp(topic, at);
  return Number(found.find((place) => place.partition === partition).offset);
}

async function consume({ bootstrap, topic, partition, start, count, settings }) {
  const [low, high] = await ends(bootstrap, topic, partition);
  const first = await offsetOf(bootstrap, topic, partition, start, low, high);
  if (count === null && first >= high) return [];
  const words = { maxWaitTimeInMs: 10, retry: QUICK, ...translated(settings, CONSUMER) };
  const groupId = `consume-${process.pid}-${process.hrtime.bigint()}`;
  const consumer = client(bootstrap).consumer({ groupId, ...words });
  const got = [];
  try {
    await consumer.connect();
    await consumer.subscribe({ topic, fromBeginning: true });
    await new Promise((resolve, reject) => {
      consumer.on("consumer.crash", ({ payload }) => payload.restart || reject(payload.error));
      setTimeout(() => reject(new Error("the broker went silent")), CONSUME_MS_MAX).unref();
      const eachMessage = async ({ partition: at, message }) => {
        const offset = Number(message.offset);
        if (at !== partition || offset < first) return;
        got.push(told(at, message));
        if (count === null ? offset >= high - 1 : got.length >= count) resolve();
      };
      consumer.run({ autoCommit: false, eachMessage }).catch(reject);
      consumer.seek({ topic, partition, offset: String(first) });
    });
  } finally {
    await consumer.disconnect();
  }
  return count === null ? got : got.slice(0, count);
}

function told(partition, { offset, key, value, headers, timestamp }) {
  const pairs = Object.entries(headers).flatMap(([name, content]) =>
    (Array.isArray(content) ? content : [content]).map((each) => [name, text(each)]),
  );
  return [partition, Number(offset), text(key), text(value), pairs, Number(timestamp)];
}

// A producer that sends on.

let streaming = null;

async function stream({ bootstrap, topic, partitions }) {
  const producer = producerOf(client(bootstrap), { idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  streaming = { producer, sent: 0, ended: false };
  streaming.done = sendOn(streaming, topic, partitions);
}

async function sendOn(state, topic, partitions) {
  while (!state.ended) {
    const messages = Array.from({ length: IN_FLIGHT_MAX }, (_, i) => {
      const number = state.sent + i;
      return { value: String(number), partition: number % partitions };
    });
    state.sent += IN_FLIGHT_MAX;
    // One partition a send: of a send to several nodes kafkajs repeats what a node has
    // acknowledged, with new sequences, if another node's request fails and the first node's
    // connection was replaced meanwhile (producer/sendMessages.js).
    const sends = Array.from({ length: partitions }, async (_, index) => {
      const own = messages.filter((message) => message.partition === index);
      const [{ baseOffset }] = await state.producer.send({ topic, messages: own });
      const first = Number(baseOffset);
      say({ acked: own.map(({ value }, i) => [index, first + i, value]) });
    });
    try {
      await Promise.all(sends);
    } catch (fault) {
      say({ fault: String(fault) });
      return;
    }
    await pause(TURN_MS);
  }
}

async function unstream() {
  streaming.ended = true;
  await streaming.done;
  await streaming.producer.disconnect();
  return streaming.sent;
}

// A member of a group.

let member = null;

async function join({ bootstrap, group, topics, settings }) {
  const words = { maxWaitTimeInMs: 10, retry: QUICK, ...translated(settings, CONSUMER) };
  const consumer = client(bootstrap, translated(settings, CLIENT)).consumer({
    groupId: group,
    ...words,
  });
  const state = { consumer, assigned: [], read: new Map() };
  member = state;
  consumer.on("consumer.group_join", ({ payload }) => {
    if (state.assigned.length) say({ revoked: state.assigned });
    state.assigned = Object.entries(payload.memberAssignment).flatMap(([topic, partitions]) =>
      partitions.map((partition) => [topic, partition]),
    );
    say({ assigned: state.assigned });
  });
  consumer.on("consumer.crash", ({ payload }) => {
    if (!payload.restart) say({ fault: String(payload.error) });
  });
  const { fromBeginning } = { fromBeginning: true, ...translated(settings, START) };
  await consumer.connect();
  await consumer.subscribe({ topics, fromBeginning });
  const eachMessage = async ({ topic, partition, message }) => {
    const offset = Number(message.offset);
    say({ read: [[topic, partition, offset, text(message.value)]] });
    state.read.set(JSON.stringify([topic, partition]), offset + 1);
  };
  consumer.run({ ...translated(settings, RUN), eachMessage }).catch((fault) => {
    say({ fault: String(fault) });
  });
}

async function commit({ offsets }) {
  const places =
    offsets ?? [...member.read].map(([place, offset]) => [...JSON.parse(place), offset, ""]);
  await member.consumer.commitOffsets(places.map(placeOf));
}

function placeOf([topic, partition, offset, metadata]) {
  return { topic, partition, offset: String(offset), metadata };
}

async function leave() {
  await member.consumer.disconnect();
  member = null;
}

// A transactional producer.

let transactional = null;
let transaction = null;
let isBegun = false;

async function init({ bootstrap, id, timeout_ms }) {
  transactional = producerOf(client(bootstrap), {
    transactionalId: id,
    transactionTimeout: timeout_ms,
    idempotent: true,
    maxInFlightRequests: 1,
  });
  await transactional.connect();
  // It gets its producer id, which fences others, with its first transaction.
  transaction = await transactional.transaction();
  isBegun = false;
}

async function begin() {
  if (isBegun) transaction = await transactional.transaction();
  isBegun = true;
}

// One partition a send: of a send to several nodes kafkajs drops the records of a partition whose
// leader moves meanwhile to a node that has already acknowledged others (producer/sendMessages.js).
async function send({ topic, records }) {
  const placed = [];
  for (const own of new Set(records.map(([partition]) => partition))) {
    const messages = records
      .filter(([partition]) => partition === own)
      .map(([partition, value]) => ({ partition, value: raw(value) }));
    const [{ baseOffset }] = await transaction.send({ topic, messages });
    placed.push([own, Number(baseOffset)]);
  }
  return placed;
}

async function add_offsets({ group, offsets }) {
  const topics = offsets.map(([topic, partition, offset]) => ({
    topic,
    partitions: [{ partition, offset: String(offset) }],
  }));
  await transaction.sendOffsets({ consumerGroupId: group, topics });
}

async function end({ commit: committed }) {
  await (committed ? transaction.commit() : transaction.abort());
}

async function retire() {
  await transactional.disconnect();
}

// The admin calls; one client for as long as the address stays the same.

const admins = new Map();

async function admin(bootstrap) {
  if (!admins.has(bootstrap)) {
    for (const other of admins.values()) await other.disconnect();
    admins.clear();
    const made = client(bootstrap).admin({ retry: QUICK });
    await made.connect();
    admins.set(bootstrap, made);
  }
  return admins.get(bootstrap);
}

async function create_topic(order) {
  const { bootstrap, name, partitions = 1, replicas = 1, config = {}, trial = false } = order;
  const topic = {
    topic: name,
    numPartitions: partitions,
    replicationFactor: replicas,
    configEntries: Object.entries(config).map(([key, value]) => ({ name: key, value })),
  };
  const asked = { validateOnly: trial, waitForLeaders: false, topics: [topic] };
  const made = await (await admin(bootstrap)).createTopics(asked);
  if (!made) throw Object.assign(new Error("there is one"), { code: 36 });
}

async function delete_topic({ bootstrap, name }) {
  await (await admin(bootstrap)).deleteTopics({ topics: [name] });
}

async function grow_topic({ bootstrap, name, partitions }) {
  const topicPartitions = [{ topic: name, count: partitions }];
  await (await admin(bootstrap)).createPartitions({ topicPartitions });
}

async function list_topics({ bootstrap }) {
  return (await admin(bootstrap)).listTopics();
}

async function describe_topic({ bootstrap, name }) {
  const { topics } = await (await admin(bootstrap)).fetchTopicMetadata({ topics: [name] });
  const partitions = topics[0].partitions.map(({ partitionId, leader, replicas, isr }) => ({
    id: partitionId,
    leader,
    replicas,
    isr,
  }));
  return { internal: topics[0].isInternal ?? false, partitions };
}

async function delete_records({ bootstrap, topic, partition, before }) {
  const partitions = [{ partition, offset: String(before) }];
  // It looks for the leader only among the topics it has asked for before.
  await ends(bootstrap, topic, partition);
  await (await admin(bootstrap)).deleteTopicRecords({ topic, partitions });
}

async function offset({ bootstrap, topic, partition, at }) {
  if (typeof at !== "number") {
    const [low, high] = await ends(bootstrap, topic, partition);
    return at === "earliest" ? low : high;
  }
  const found = await (await admin(bootstrap)).fetchTopicOffsetsByTimestamp(topic, at);
  return Number(found.find((place) => place.partition === partition).offset);
}

async function describe_cluster({ bootstrap }) {
  const { clusterId, controller, brokers } = await (await admin(bootstrap)).describeCluster();
  return { id: clusterId, controller, nodes: brokers.map(({ nodeId }) => nodeId) };
}

async function describe_config({ bootstrap, kind, name }) {
  const asked = { includeSynonyms: false, resources: [{ type: KINDS[kind], name }] };
  const { resources } = await (await admin(bootstrap)).describeConfigs(asked);
  const entries = resources[0].configEntries.map(({ configName, configValue, isDefault }) => [
    configName,
    [configValue, isDefault],
  ]);
  return Object.fromEntries(entries);
}

async function replace_config({ bootstrap, kind, name, changes }) {
  const configEntries = Object.entries(changes).map(([key, value]) => ({ name: key, value }));
  const resources = [{ type: KINDS[kind], name, configEntries }];
  await (await admin(bootstrap)).alterConfigs({ validateOnly: false, resources });
}

async function list_groups({ bootstrap }) {
  const { groups } = await (await admin(bootstrap)).listGroups();
  return Object.fromEntries(groups.map(({ groupId }) => [groupId, null]));
}

async function describe_group({ bootstrap, group }) {
  const { groups } = await (await admin(bootstrap)).describeGroups([group]);
  const members = groups[0].members.map((each) => ({
    id: each.memberId,
    client_id: each.clientId,
    host: each.clientHost,
    instance: null,
    assigned: each.memberAssignment.length ? assignmentTold(each.memberAssignment) : [],
  }));
  return { state: groups[0].state, protocol: groups[0].protocol, members };
}

function assignmentTold(buffer) {
  const { assignment } = AssignerProtocol.MemberAssignment.decode(buffer);
  return Object.entries(assignment).flatMap(([topic, partitions]) =>
    partitions.map((partition) => [topic, partition]),
  );
}

async function delete_group({ bootstrap, group }) {
  try {
    await (await admin(bootstrap)).deleteGroups([group]);
  } catch (fault) {
    throw fault.groups?.[0]?.error ?? fault;
  }
}

async function group_offsets({ bootstrap, group }) {
  const found = await (await admin(bootstrap)).fetchOffsets({ groupId: group });
  return found.flatMap(({ topic, partitions }) =>
    partitions.map((at) => [topic, at.partition, Number(at.offset), at.metadata ?? ""]),
  );
}

async function set_group_offsets({ bootstrap, group, offsets }) {
  for (const topic of new Set(offsets.map(([name]) => name))) {
    const partitions = offsets
      .filter(([name]) => name === topic)
      .map(([, partition, offset]) => ({ partition, offset: String(offset) }));
    await (await admin(bootstrap)).setOffsets({ groupId: group, topic, partitions });
  }
}

const ORDERS = {
  produce, consume, stream, unstream, join, commit, leave,
  init, begin, send, add_offsets, end, retire,
  create_topic, delete_topic, grow_topic, list_topics, describe_topic, delete_records, offset,
  describe_cluster, describe_config, replace_config,
  list_groups, describe_group, delete_group, group_offsets, set_group_offsets,
};

function refusal(fault) {
  // What it tried again and again, and what it asked for several places at once, are wrapped.
  let found = fault;
  while (found && !(found.code > 0)) {
    const inner = found.errors?.[0] ?? found.partitions?.[0]?.error;
    found = found.cause ?? found.originalError ?? inner ?? null;
  }
  return { refused: { code: found ? found.code : null, text: String(fault) } };
}

async function answer(line) {
  const { do: name, ...order } = JSON.parse(line);
  try {
    say({ answer: (await ORDERS[name](order)) ?? null });
  } catch (fault) {
    say(refusal(fault));
  }
}

let last = Promise.resolve();
const lines = readline.createInterface({ input: process.stdin });
lines.on("line", (line) => (last = last.then(() => answer(line))));
lines.on("close", () => process.exit(0));
