// Package storage keeps Redrive's rows: producers, channels, consumers, messages, jobs, dead-letter counts and
// locks, on MySQL 8.0+ or MariaDB 10.6+.
//
// Everything that changes a job is a compare-and-set on its status and, for an attempt, on its lease token; the rows
// affected decide who won. No method trusts the clock of the process: leases, schedules and time stamps are made of
// the database's NOW(6) in UTC. Transactions are short, READ COMMITTED, take their locks in one order (job, then
// dlq_summary, then tally) and are run again as a whole on a deadlock.
//
// The package knows the state machine and its SQL; it does not know HTTP, goroutines, retry policies or metrics. It
// imports no other package of the project.
package storage
