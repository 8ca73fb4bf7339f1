// Package broker takes messages in and gets each of them to every consumer of its channel.
//
// The way of a message: Accept gathers concurrent broadcasts into one transaction (acceptor); a job whose consumer has
// a free slot here is stored already leased and pushed right after the commit, any other waits QUEUED until a lane of
// some instance claims it (dispatcher); the attempt is made within the lease (attempter), one HTTP POST (pusher) or, of an
// engine, a call of its Executor; its outcome is written with others in one transaction, fenced by the lease's token
// (finisher). Beside that go the sweeps: leases that ran
// out, scheduled messages whose time has come, jobs of deleted consumers.
//
// Each consumer has slots of its own, so one that hangs delays only itself. Instances share nothing but the database.
// The package refuses to know about dead-letter counts: a death is a plain status change, counted elsewhere.
package broker
