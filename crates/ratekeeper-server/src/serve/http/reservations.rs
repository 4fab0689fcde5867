//! `/v1/reserve` and `/v1/settle`: an estimate is charged first, and corrected to the actual cost later.

use http::StatusCode;
use ratekeeper::{Cost, Op};

use super::HttpApi;
use super::check::apply;
use super::error::RequestError;
use super::hold_table::{Hold, ReservedCharge};
use super::json_fields;
use super::request::RateCheck;
use super::response::{
    ApiResponse, DecisionBody, error_response, store_error_response, too_many_holds,
    with_limit_headers,
};

pub(super) async fn reserve(api: &HttpApi, body: &[u8]) -> Result<ApiResponse, RequestError> {
    let object = json_fields::parse_object(body)?;
    let check = RateCheck::parse(&object, &["valid_ms"])?;
    let deadline_us = api.deadline_us(json_fields::hold_time(&object)?);
    let applied = apply(api, Op::Check, std::slice::from_ref(&check)).await?;
    let body = DecisionBody::new(&check.limit, &applied, applied.is_degraded());
    if !applied.allowed() {
        let denied = body.to_response(StatusCode::TOO_MANY_REQUESTS);
        return Ok(with_limit_headers(denied, &check.limit, &applied));
    }
    let receipt = applied.receipt();
    let reserved = ReservedCharge { check: check.clone(), receipt: receipt.clone() };
    let hold = Hold::Reservation(Box::new(reserved));
    let Some(id) = api.holds.insert(hold, deadline_us, api.now_us()) else {
        // The caller could never settle it.
        let refund = Op::Refund { charged_at: receipt.at() };
        let _ = api.limiter.engine().correct(refund, &check.charge(), &receipt).await;
        return Ok(too_many_holds());
    };
    let response = body.with_reservation(id).to_response(StatusCode::OK);
    Ok(with_limit_headers(response, &check.limit, &applied))
}

pub(super) async fn settle(api: &HttpApi, body: &[u8]) -> Result<ApiResponse, RequestError> {
    let object = json_fields::parse_object(body)?;
    json_fields::check_known(&object, &["reservation", "cost"])?;
    let expected = "the id that /v1/reserve returned";
    let id = json_fields::required_string(&object, "reservation", expected)?;
    let expected = "the actual cost; 0 refunds all";
    let actual = json_fields::required_integer(&object, "cost", expected)?;
    let is_reservation = |hold: &Hold| matches!(hold, Hold::Reservation(_));
    let removed = api.holds.remove(id, api.now_us(), is_reservation);
    let Some((deadline_us, Hold::Reservation(reserved))) = removed else {
        return Ok(no_such_reservation());
    };
    let ReservedCharge { check, receipt } = &*reserved;
    let correction = Op::correction(check.cost, actual, receipt.at());
    let (op, cost) = correction.unwrap_or((Op::Peek, Cost::ONE));
    match api.limiter.engine().correct(op, &check.charge().cost(cost), receipt).await {
        Ok(applied) => {
            api.count_decision(op, check, &applied);
            let body = DecisionBody::new(&check.limit, &applied, applied.is_degraded());
            Ok(body.to_response(StatusCode::OK))
        }
        Err(error) => {
            api.holds.reinsert(id, Hold::Reservation(reserved), deadline_us);
            let message =
                format!("the reservation was not settled and is still held; retry: {error}");
            Ok(store_error_response(&message))
        }
    }
}

fn no_such_reservation() -> ApiResponse {
    let message =
        "there is no such reservation: it was settled, or it has expired and its charge stays";
    error_response(StatusCode::GONE, "GONE", message)
}
