// Package health is RFC-72's health engine: on a timer it asks the destination of every push consumer whether it is there,
// keeps what it found in destination_health, and says when a destination falls or comes back.
//
// A probe is a HEAD of the callback URL, without credentials and without following redirects: no message is delivered by it. Any answer
// below 500 but 408 and 429 shows that somebody is there. Deliveries do not ask for a destination's health: it is for people, and
// for whoever brings dead letters back.
package health
