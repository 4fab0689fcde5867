//! What the server says when it is ready.

use std::io::{self, Write};
use std::net::TcpListener;

use super::Server;
use super::doors::Doors;
use super::options::{DoorName, Serve};

impl Serve {
    pub(super) fn announce(&self, server: &Server, doors: &Doors, admin: Option<&TcpListener>) {
        let mut told = String::new();
        if let Some(address) = doors.http {
            told += &format!("http: {}://{address}/\n", self.scheme("http", DoorName::Http));
        }
        if let Some(address) = doors.grpc {
            let limits = server.envoy.as_ref().map_or(0, |door| door.config().limits().len());
            let scheme = self.scheme("grpc", DoorName::Grpc);
            let limits = if limits == 1 { "1 limit".into() } else { format!("{limits} limits") };
            told += &format!("envoy: {scheme}://{address} ({limits})\n");
        }
        if let Some(address) = doors.resp {
            let (scheme, port) = (self.scheme("redis", DoorName::Resp), address.port());
            let tls = if self.is_tls(DoorName::Resp) { " --tls" } else { "" };
            told += &format!(
                "redis: {scheme}://{address} (redis-cli -p {port}{tls} CL.THROTTLE user:42 15 30 60)\n"
            );
        }
        if let Some(address) = admin.and_then(|listener| listener.local_addr().ok()) {
            told += &format!("admin: {}://{address}/\n", self.scheme("http", DoorName::Admin));
        }
        match &self.policy {
            Some(policy) => told += &format!("policy: {}\n", policy.display()),
            None => told += "policy: none; callers bring their own rates\n",
        }
        if let Some(address) = doors.http {
            let scheme = self.scheme("http", DoorName::Http);
            let token =
                if self.tokens.is_some() { " -H 'Authorization: Bearer TOKEN'" } else { "" };
            let ask = r#"{"key":"user:42","rate":"100/minute"}"#;
            told += &format!("try: curl -i{token} {scheme}://{address}/v1/check -d '{ask}'\n");
        }
        // It serves also if nobody listens to what it says.
        let _ = io::stderr().write_all(told.as_bytes());
    }

    fn scheme(&self, plain: &str, door: DoorName) -> String {
        if self.is_tls(door) { format!("{plain}s") } else { plain.to_string() }
    }
}
