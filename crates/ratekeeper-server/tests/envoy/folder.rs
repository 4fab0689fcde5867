//! The folder of the files.

use ratekeeper_testkit::{ANY_PORT, wait_until};

use crate::client::Client;
use crate::process::Server;
use crate::service::{ServingStatus, health};

const FILE: &str = "{ domain: test, descriptors: [{ key: user, rate_limit: { rate: 2/year } }] }";

#[tokio::test]
async fn a_folder_without_a_limit_is_not_ready_until_there_is_one() {
    let args = ["--grpc", ANY_PORT, "--admin", ANY_PORT];
    let server = Server::start_with("{ domain: empty, descriptors: [] }", &args);
    server.wait_for_log("there is no limit in the files for Envoy");
    let statuses = || {
        let ready = Client::connect(server.admin()).get("/readyz");
        let healthcheck = Client::connect(server.http()).get("/healthcheck");
        (ready.status(), healthcheck.status())
    };
    assert_eq!(statuses(), (503, 503));
    let body = Client::connect(server.admin()).get("/readyz").body;
    assert!(body.contains("\"reason\": \"there is no limit in the files for Envoy\""), "{body}");
    for service in ["", "ratelimit"] {
        assert_eq!(health(&server, service).await, ServingStatus::NotServing);
    }
    assert_eq!(Client::connect(server.admin()).get("/healthz").status(), 200, "it is alive");

    server.write("team/limits", FILE);
    wait_until("it is ready", || statuses() == (200, 200));
    for service in ["", "ratelimit"] {
        assert_eq!(health(&server, service).await, ServingStatus::Serving);
    }
}
