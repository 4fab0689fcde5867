//! Responses in the form of language model APIs, which state the tokens that they have used.

/// The tokens of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Input tokens, without those from a cache.
    pub input: u64,
    /// Input tokens from a cache.
    pub cached: u64,
    /// Output tokens.
    pub output: u64,
}

impl Tokens {
    /// Returns tokens that differ for each number.
    pub fn of(n: u64) -> Self {
        Self { input: 10 + n * 7 % 101, cached: n * 3 % 17, output: 1 + n % 53 }
    }

    /// Returns their number.
    pub fn total(&self) -> u64 {
        self.input + self.cached + self.output
    }
}

/// The `usage` of OpenAI's chat completions, whose prompt includes what is cached.
fn openai_usage(tokens: Tokens) -> String {
    let Tokens { input, cached, output } = tokens;
    let (prompt, total) = (input + cached, tokens.total());
    format!(
        "{{\"prompt_tokens\":{prompt},\"completion_tokens\":{output},\"total_tokens\":{total},\
         \"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}}}"
    )
}

/// Returns a response of OpenAI's chat completions.
pub fn openai_json(tokens: Tokens) -> String {
    let usage = openai_usage(tokens);
    format!(
        "{{\"id\":\"chatcmpl-1\",\"choices\":[{{\"message\":{{\"content\":\"{{\\\"usage\\\":1}}\"}}}}],\"usage\":{usage}}}"
    )
}

/// Returns the events of a streamed response of OpenAI's chat completions, with or without usage.
pub fn openai_events(tokens: Tokens, has_usage: bool) -> Vec<String> {
    let delta = |n: u64| {
        format!(
            "data: {{\"id\":\"chatcmpl-1\",\"choices\":[{{\"delta\":{{\"content\":\"word {n}\"}}}}],\"usage\":null}}\n\n"
        )
    };
    let usage = format!(
        "data: {{\"id\":\"chatcmpl-1\",\"choices\":[],\"usage\":{}}}\n\n",
        openai_usage(tokens)
    );
    let deltas = (0..tokens.output).map(delta);
    let done = "data: [DONE]\n\n".to_string();
    deltas.chain(has_usage.then_some(usage)).chain([done]).collect()
}

/// Returns a response of Anthropic's messages.
pub fn anthropic_json(Tokens { input, cached, output }: Tokens) -> String {
    format!(
        "{{\"type\":\"message\",\"content\":[],\"usage\":{{\"input_tokens\":{input},\
         \"cache_read_input_tokens\":{cached},\"output_tokens\":{output}}}}}"
    )
}

/// Returns the events of a streamed response of Anthropic's messages.
pub fn anthropic_events(Tokens { input, cached, output }: Tokens) -> Vec<String> {
    let start = format!(
        "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\"usage\":{{\"input_tokens\":{input},\
         \"cache_read_input_tokens\":{cached},\"output_tokens\":1}}}}}}\n\n"
    );
    let delta = |n: u64| {
        format!(
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"delta\":{{\"text\":\"word {n}\"}}}}\n\n"
        )
    };
    let end = format!(
        "event: message_delta\ndata: {{\"type\":\"message_delta\",\"usage\":{{\"output_tokens\":{output}}}}}\n\n"
    );
    let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n".to_string();
    [start].into_iter().chain((0..output).map(delta)).chain([end, stop]).collect()
}
