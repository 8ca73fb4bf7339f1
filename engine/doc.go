// Package engine is what RFC-72 says of engines: which a deployment has, by its context (publisher or managed-app), with
// the queues that their messages come from and the operations that they record; the configuration of the tables that
// they share; and the retention of what is in these. Rows are package storage's, requests are package web's.
package engine
