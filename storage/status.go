package storage

// Status is a job's state. The numbers are the ones that clients of the wire contract and SQL users know.
//
//	QUEUED --claim--> INFLIGHT --2xx--> DELIVERED
//	   ^                 |
//	   +---retry later---+--attempts used up--> DEAD --purge--> (gone)
//	   +------------------redrive-----------------+
//	   +------------------retry--- SHELVED <--resolved or expired by a person
type Status uint16

// The states of a job.
const (
	StatusQueued    Status = 1001
	StatusInflight  Status = 1002
	StatusDelivered Status = 1003
	StatusDead      Status = 1004
	StatusShelved   Status = 1005
)

// statusNames is ordered by number.
var statusNames = [...]struct {
	status Status
	name   string
}{
	{StatusQueued, "QUEUED"},
	{StatusInflight, "INFLIGHT"},
	{StatusDelivered, "DELIVERED"},
	{StatusDead, "DEAD"},
	{StatusShelved, "SHELVED"},
}

// String is the state's name on the wire.
func (s Status) String() string {
	for _, n := range statusNames {
		if n.status == s {
			return n.name
		}
	}
	return "UNKNOWN"
}

// ParseStatus reads a state's wire name.
func ParseStatus(name string) (Status, bool) {
	for _, n := range statusNames {
		if n.name == name {
			return n.status, true
		}
	}
	return 0, false
}

// ConsumerType says how a consumer gets its jobs.
type ConsumerType string

// The types of consumers.
const (
	TypePush ConsumerType = "push" // the broker POSTs each job to the callback URL
	TypePull ConsumerType = "pull" // the consumer asks for its jobs and reports on them
	// TypeEngine: instances that have the engine of the consumer's id execute its jobs themselves; see PutEngineQueue.
	TypeEngine ConsumerType = "engine"
)
