//! What the server prints when it is ready.

use std::io::{self, Write};

use super::Server;
use super::listeners::Listening;
use super::options::{ListenerName, Serve};
use crate::choices::LocalAddress;
use crate::listener::AdminListener;

impl Serve {
    pub(super) fn announce(
        &self,
        server: &Server,
        listening: &Listening,
        admin: Option<&AdminListener>,
    ) {
        let mut text = String::new();
        if let Some(address) = listening.http {
            text += &format!("http: {}://{address}/\n", self.scheme("http", ListenerName::Http));
        }
        if let Some(envoy) = &server.envoy {
            let limits = match (envoy.has_files(), envoy.config().limits().len()) {
                (false, _) => "descriptors bring their own limits".into(),
                (true, 1) => "1 limit".into(),
                (true, limits) => format!("{limits} limits"),
            };
            match &listening.grpc {
                LocalAddress::Off => {}
                LocalAddress::Tcp(address) => {
                    let scheme = self.scheme("grpc", ListenerName::Grpc);
                    text += &format!("envoy: {scheme}://{address} ({limits})\n");
                }
                socket @ LocalAddress::Unix(_) => text += &format!("envoy: {socket} ({limits})\n"),
            }
        }
        if let Some(address) = listening.resp {
            let (scheme, port) = (self.scheme("redis", ListenerName::Resp), address.port());
            let tls = if self.is_tls(ListenerName::Resp) { " --tls" } else { "" };
            text += &format!(
                "redis: {scheme}://{address} (redis-cli -p {port}{tls} CL.THROTTLE user:42 15 30 60)\n"
            );
        }
        if let Some(address) = admin.and_then(|admin| admin.listener.local_addr().ok()) {
            text += &format!("admin: {}://{address}/\n", self.scheme("http", ListenerName::Admin));
        }
        match &self.policy {
            Some(policy) => text += &format!("policy: {}\n", policy.display()),
            None => text += "policy: none; requests name their own rates\n",
        }
        if let Some(address) = listening.http {
            let scheme = self.scheme("http", ListenerName::Http);
            let token =
                if self.tokens.is_some() { " -H 'Authorization: Bearer TOKEN'" } else { "" };
            let body = r#"{"key":"user:42","rate":"100/minute"}"#;
            text += &format!("try: curl -i{token} {scheme}://{address}/v1/check -d '{body}'\n");
        }
        // The server works even if this cannot be written.
        let _ = io::stderr().write_all(text.as_bytes());
    }

    fn scheme(&self, plain: &str, listener: ListenerName) -> String {
        if self.is_tls(listener) { format!("{plain}s") } else { plain.to_string() }
    }
}
