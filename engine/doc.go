// Package engine holds the vocabulary of RFC-72: which engines a deployment has, by its context (publisher or
// managed-app), the queues that their messages come from, the operations that they record, and the configuration of
// the two tables that they share. It reads and writes nothing: rows are package storage's, requests are package web's.
package engine
