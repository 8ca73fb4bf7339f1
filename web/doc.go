// Package web is Redrive's HTTP API: the broker's wire contract, the dead-letter endpoints, health, metrics and the
// OpenAPI document that describes them all.
//
// It turns requests into calls of the storage package and of the interfaces that it declares here (Broadcaster,
// Kicker, DeadCounter, AlertSink), and their results and errors into answers. It decides nothing about jobs: which change of
// state is allowed, what is counted and what is delivered is decided behind it. It starts no goroutine and keeps no
// state between requests.
//
// Answers carry the names, headers and status codes of the wire contract. Errors are a short plain text, or an RFC 9457
// problem for callers that accept application/problem+json; what went wrong inside never reaches a client.
package web
