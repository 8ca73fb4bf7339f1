package engine

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// What DefaultConfig has, as RFC-72 says.
const (
	DefaultDLQTable      = "engineDlq"
	DefaultHistoryTable  = "engineHistory"
	DefaultRetentionDays = 90
)

// maxRetentionDays is a hundred years.
const maxRetentionDays = 36500

// Config is the engineTablesConfig of a registry (RFC-72, 5): where the two tables are and how long their rows stay.
type Config struct {
	// StorageAccountName is the schema (database) that the tables are in, where a registry names it. They are always in
	// the one that the broker works in: a death and its record are one transaction. May be empty.
	StorageAccountName string `json:"storageAccountName" yaml:"storageAccountName"`
	DLQTableName       string `json:"dlqTableName"       yaml:"dlqTableName"`
	HistoryTableName   string `json:"historyTableName"   yaml:"historyTableName"`
	// RetentionDays is how long resolved and expired dead letters and history entries stay. Pending ones stay.
	RetentionDays int `json:"retentionDays" yaml:"retentionDays"`
}

// DefaultConfig is what RFC-72 gives: engineDlq and engineHistory, 90 days.
func DefaultConfig() Config {
	return Config{DLQTableName: DefaultDLQTable, HistoryTableName: DefaultHistoryTable, RetentionDays: DefaultRetentionDays}
}

// Names that can stand in any statement, on every server; tables are named as RFC-72's table storage wants it.
var (
	schemaPattern = regexp.MustCompile(`^[A-Za-z0-9_$-]{1,64}$`)
	tablePattern  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]{2,62}$`)
)

// brokerTables are the tables of the broker, and of its migrations, in the same schema; servers on some file systems
// do not tell upper from lower case.
func brokerTables() []string {
	return []string{
		"catalog", "channel", "consumer", "consumer_removal", "destination_health", "dlq_summary", "job", "lock", "message", "message_payload", "producer", "registry",
		"schedule", "schema_migrations", "seal_key", "signing_secret", "tally",
	}
}

// Validate says what is wrong with the configuration: one error a field, each with its name, its value and what is
// allowed.
func (c Config) Validate() error {
	var errs []error
	refuse := func(field string, value any, allowed string) {
		errs = append(errs, fmt.Errorf("engineTablesConfig.%s: %q is not allowed: must be %s", field, fmt.Sprint(value), allowed))
	}
	if c.StorageAccountName != "" && !schemaPattern.MatchString(c.StorageAccountName) {
		refuse("storageAccountName", c.StorageAccountName, "empty, or the name of a schema: at most 64 of A-Z a-z 0-9 _ $ -")
	}
	const table = "a letter and 2 to 62 more of A-Z a-z 0-9, and no table of the broker"
	tableFits := func(name string) bool {
		return tablePattern.MatchString(name) && !slices.Contains(brokerTables(), strings.ToLower(name))
	}
	if !tableFits(c.DLQTableName) {
		refuse("dlqTableName", c.DLQTableName, table)
	}
	switch {
	case !tableFits(c.HistoryTableName):
		refuse("historyTableName", c.HistoryTableName, table)
	case strings.EqualFold(c.HistoryTableName, c.DLQTableName):
		refuse("historyTableName", c.HistoryTableName, "another name than dlqTableName, in other letters")
	}
	if c.RetentionDays < 1 || c.RetentionDays > maxRetentionDays {
		refuse("retentionDays", c.RetentionDays, "from 1 to 36500")
	}
	return errors.Join(errs...)
}

func isPrintable(r rune) bool { return r != utf8.RuneError && unicode.IsPrint(r) }
