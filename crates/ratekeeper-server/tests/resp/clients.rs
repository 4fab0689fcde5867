//! Client libraries.

use std::process::{Command, Output};

use crate::Server;

fn assert_success(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs a script of redis-py with the port of the server as its argument.
fn run_python(server: &Server, script: &str) {
    let port = server.address.port().to_string();
    let python = Command::new(ratekeeper_testkit::python()).args(["-c", script, &port]).output();
    assert_success(&python.unwrap());
}

/// Runs a script of ioredis with the port of the server as its argument.
fn run_node(server: &Server, script: &str) {
    let port = server.address.port().to_string();
    let (program, packages) = ratekeeper_testkit::node();
    let mut node = Command::new(program);
    node.args(["-e", script, &port]).env("NODE_PATH", packages);
    assert_success(&node.output().unwrap());
}

#[test]
fn redis_py_works() {
    let server = Server::start(&[]);
    let script = r#"
import redis, sys
for protocol in (2, 3):
    client = redis.Redis(port=int(sys.argv[1]), protocol=protocol, client_name="test")
    assert client.ping()
    assert client.client_getname() in ("test", b"test")
    key = f"user:{protocol}"
    assert client.execute_command("CL.THROTTLE", key, 15, 30, 60) == [0, 16, 15, -1, 2]
    pipe = client.pipeline(transaction=False)
    for _ in range(500):
        pipe.execute_command("CL.THROTTLE", f"pipe:{protocol}", 99, 1, 3600)
    replies = pipe.execute()
    assert [reply[0] for reply in replies] == [0] * 100 + [1] * 400
    reply = client.execute_command("RK.CHECK", key, "5/s")
    assert (reply[b"allowed"] is True) if protocol == 3 else (reply[:2] == [b"allowed", 1])
    try:
        client.get("k")
        raise SystemExit("there is no GET")
    except redis.ResponseError as error:
        assert "unknown command" in str(error), error
"#;
    run_python(&server, script);
}

#[test]
fn redis_py_transactions_work() {
    let server = Server::start(&[]);
    let script = r#"
import redis, sys
port = int(sys.argv[1])
for protocol in (2, 3):
    client = redis.Redis(port=port, protocol=protocol, db=protocol)
    # The default of redis-py is a transaction.
    pipe = client.pipeline()
    for _ in range(3):
        pipe.execute_command("CL.THROTTLE", "k", 1, 1, 3600)
    pipe.ttl("k").exists("k", "other")
    replies = pipe.execute()
    assert replies == [[0, 2, 1, -1, 3600], [0, 2, 0, -1, 7200], [1, 2, 0, 3600, 7200], 7200, 1], replies
    assert client.delete("k") == 1
    assert client.ttl("k") == -2

    # A refused command aborts the transaction: nothing is charged.
    pipe = client.pipeline()
    pipe.execute_command("CL.THROTTLE", "k", 1, 1, 3600)
    pipe.get("k")
    try:
        pipe.execute()
        raise SystemExit("there is no GET")
    except redis.ResponseError as error:
        assert "unknown command 'GET'" in str(error), error
    assert not client.exists("k")

    replies = client.transaction(lambda pipe: pipe.execute_command("CL.THROTTLE", "k", 1, 1, 3600))
    assert replies == [[0, 2, 1, -1, 3600]], replies
    try:
        client.transaction(lambda pipe: pipe.ping(), "k")
        raise SystemExit("there is no WATCH")
    except redis.ResponseError as error:
        assert "WATCH is not supported" in str(error), error
    assert client.unlink("k") == 1
"#;
    run_python(&server, script);
}

#[test]
fn ioredis_transactions_work() {
    let server = Server::start(&[]);
    let script = r#"
const Redis = require("ioredis");
const assert = require("node:assert");
const throttle = ["CL.THROTTLE", "k", 1, 1, 3600];
(async () => {
    const client = new Redis(Number(process.argv[1]), { db: 2 });
    const multi = client.multi().call(...throttle).call(...throttle).call(...throttle).ttl("k");
    assert.deepStrictEqual(await multi.exec(), [
        [null, [0, 2, 1, -1, 3600]],
        [null, [0, 2, 0, -1, 7200]],
        [null, [1, 2, 0, 3600, 7200]],
        [null, 7200],
    ]);
    assert.strictEqual(await client.del("k"), 1);
    await assert.rejects(client.multi().call(...throttle).get("k").exec(), /EXECABORT/);
    assert.strictEqual(await client.exists("k"), 0);
    await client.multi({ pipeline: false });
    assert.strictEqual(await client.call(...throttle), "QUEUED");
    assert.deepStrictEqual(await client.exec(), [[null, [0, 2, 1, -1, 3600]]]);
    await client.quit();
})().catch((error) => {
    console.error(error);
    process.exit(1);
});
"#;
    run_node(&server, script);
}
