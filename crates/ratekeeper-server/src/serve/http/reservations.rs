//! `/v1/reserve` and `/v1/settle`: an estimate is charged first, and corrected to the actual cost later, by any
//! server that shares the store.

use http::{HeaderMap, StatusCode};
use ratekeeper::{ReservationError, ReserveError};

use super::error::RequestError;
use super::json_fields;
use super::request::RateCheck;
use super::response::{
    ApiResponse, DecisionBody, error_response, not_held_response, store_error_response,
    with_limit_headers, with_request_id,
};
use super::{Checked, HttpApi};

pub(super) async fn reserve(
    api: &HttpApi,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<ApiResponse, RequestError> {
    let object = json_fields::parse_object(body)?;
    let check = RateCheck::parse(&object, &["valid_ms"])?;
    if check.has_max_debt() {
        let expected = "true or false in a reservation, which is charged in full";
        return Err(RequestError::FieldType { field: "overdraft", expected });
    }
    let valid = json_fields::hold_time(&object)?;
    let reserved = match api.engine().reserve(&[check.charge()], check.cost, valid).await {
        Ok(reserved) => reserved,
        Err(ReserveError::Charges(error)) => return Err(error.into()),
        Err(error) => return Ok(too_many_held(&error)),
    };
    let applied = reserved.applied();
    let request_id = (!applied.allowed()).then(|| api.request_id(headers));
    let (checks, charges) = (std::slice::from_ref(&check), &[check.charge()]);
    api.record_check(&Checked { checks, charges, applied }, request_id.as_ref());
    let body = DecisionBody::new(&check.limit, applied, applied.is_degraded())
        .with_request_id(request_id.as_deref());
    let response = match reserved.id() {
        Some(id) => body.with_reservation(id.to_string()).to_response(StatusCode::OK),
        None => body.to_response(StatusCode::TOO_MANY_REQUESTS),
    };
    let response = with_limit_headers(response, &check.limit, applied);
    Ok(with_request_id(response, request_id.as_deref()))
}

pub(super) async fn settle(api: &HttpApi, body: &[u8]) -> Result<ApiResponse, RequestError> {
    let object = json_fields::parse_object(body)?;
    json_fields::check_known(&object, &["reservation", "cost"])?;
    let expected = "the id that /v1/reserve returned";
    let id = json_fields::required_string(&object, "reservation", expected)?;
    let id = id.parse().map_err(RequestError::ReservationId)?;
    let expected = "the actual cost; 0 refunds all";
    let actual = json_fields::required_integer(&object, "cost", expected)?;
    Ok(match api.engine().settle(id, actual).await {
        Ok(settled) => {
            let applied = settled.applied();
            let body = DecisionBody::new(settled.limit(), applied, applied.is_degraded());
            body.to_response(StatusCode::OK)
        }
        Err(error @ ReservationError::Store(_)) => store_error_response(&error.to_string()),
        Err(error) => not_held_response(&error),
    })
}

pub(super) fn too_many_held(error: &dyn std::error::Error) -> ApiResponse {
    error_response(StatusCode::SERVICE_UNAVAILABLE, "TOO_MANY_HELD", &error.to_string())
}
