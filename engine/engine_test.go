package engine_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/engine"
)

// The tables of RFC-72, 1.2 and 3.2, as they stand there.
func TestContextsHaveWhatTheRFCLists(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		engine.Publisher: {
			"alerts monitor-alerts-queue process",
			"delivery  deliver",
			"hmac hmac-rotation-queue rotate notify",
			"provisioning webhook-queue webhook-received instance-registered bootstrap-complete",
			"spn spn-rotation-queue rotate",
			"tls tls-rotation-queue renew distribute",
			"update-publisher  evaluate notify",
		},
		engine.ManagedApp: {
			"alerts monitor-alerts-queue process",
			"delivery  deliver",
			"health health-notifications-queue check aggregate",
			"update update-notifications-queue process component-update",
		},
	} {
		c, err := engine.Lookup(name)
		if err != nil || c.String() != name {
			t.Fatalf("%s: %v, %v", name, c, err)
		}
		var got []string
		for _, e := range c.Names() {
			got = append(got, e+" "+c.Engines[e].Queue+" "+strings.Join(c.Operations(e), " "))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s has\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if got := c.Recorded("alerts"); !slices.Equal(got, []string{"process", "requeue", "purge", "resolve", "expire"}) {
			t.Errorf("%s: the history of alerts may show %v", name, got)
		}
		if c.Operations("nobody") != nil || c.Recorded("nobody") != nil {
			t.Errorf("%s: an engine that is not there has operations", name)
		}
	}
	if _, err := engine.Lookup("Publisher"); err == nil || !strings.Contains(err.Error(), "managed-app and publisher") {
		t.Errorf("a context that is not there: %v", err)
	}
}

func TestContextIsExtended(t *testing.T) {
	t.Parallel()
	base, err := engine.Lookup(engine.ManagedApp)
	if err != nil {
		t.Fatal(err)
	}
	more, err := base.With(map[string]engine.Engine{
		"billing-2": {Queue: "billing queue", Operations: []string{"invoice", "dun"}},
		"alerts":    {Operations: []string{"process", "forward"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := more.Names(); !slices.Equal(got, []string{"alerts", "billing-2", "delivery", "health", "update"}) {
		t.Errorf("it has %v", got)
	}
	if got := more.Operations("alerts"); !slices.Equal(got, []string{"process", "forward"}) {
		t.Errorf("alerts has %v", got)
	}
	if got := base.Operations("alerts"); !slices.Equal(got, []string{"process"}) || len(base.Engines) != 4 {
		t.Errorf("the context that was extended changed: %v, %v", got, base.Names())
	}
	ok := []string{"run"}
	for name, tc := range map[string]struct {
		engine engine.Engine
		name   string
		says   string
	}{
		"the broker's own":      {engine.Engine{Operations: ok}, "delivery", "the broker's own"},
		"no name":               {engine.Engine{Operations: ok}, "", "the name must be"},
		"a capital":             {engine.Engine{Operations: ok}, "Billing", "the name must be"},
		"a slash":               {engine.Engine{Operations: ok}, "a/b", "the name must be"},
		"a dash at the end":     {engine.Engine{Operations: ok}, "a-", "the name must be"},
		"a line break":          {engine.Engine{Operations: ok}, "a\n", "the name must be"},
		"a long name":           {engine.Engine{Operations: ok}, strings.Repeat("a", 65), "the name must be"},
		"no operation":          {engine.Engine{}, "a", "at least one"},
		"an empty operation":    {engine.Engine{Operations: []string{""}}, "a", `operation ""`},
		"an operation twice":    {engine.Engine{Operations: []string{"x", "x"}}, "a", "twice"},
		"an operator's action":  {engine.Engine{Operations: []string{"requeue"}}, "a", "operators"},
		"a control in a queue":  {engine.Engine{Operations: ok, Queue: "a\x00"}, "a", "queue"},
		"a space before":        {engine.Engine{Operations: ok, Queue: " a"}, "a", "queue"},
		"a long queue":          {engine.Engine{Operations: ok, Queue: strings.Repeat("ä", 256)}, "a", "queue"},
		"a queue that is bytes": {engine.Engine{Operations: ok, Queue: "\xff"}, "a", "queue"},
		"another's queue":       {engine.Engine{Operations: ok, Queue: "health-notifications-queue"}, "zoo", `that of the engine "health"`},
	} {
		if _, err := base.With(map[string]engine.Engine{tc.name: tc.engine}); err == nil || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), fmt.Sprintf("%q", tc.name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := base.With(map[string]engine.Engine{"A": {}, "B": {}}); strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("two faults are %q", err)
	}
}

func TestConfigNamesTheFieldAndWhatIsAllowed(t *testing.T) {
	t.Parallel()
	if err := engine.DefaultConfig().Validate(); err != nil {
		t.Errorf("the default is refused: %v", err)
	}
	fine := engine.DefaultConfig()
	fine.StorageAccountName, fine.DLQTableName, fine.HistoryTableName, fine.RetentionDays = "redrive-1", "abc", strings.Repeat("h", 63), 36500
	if err := fine.Validate(); err != nil {
		t.Errorf("it is refused: %v", err)
	}
	for name, tc := range map[string]struct {
		change func(*engine.Config)
		says   []string
	}{
		"schema":         {func(c *engine.Config) { c.StorageAccountName = "a`b" }, []string{"storageAccountName", "a`b", "schema"}},
		"no table":       {func(c *engine.Config) { c.DLQTableName = "" }, []string{"dlqTableName", "a letter"}},
		"short table":    {func(c *engine.Config) { c.DLQTableName = "ab" }, []string{"dlqTableName", "2 to 62"}},
		"long table":     {func(c *engine.Config) { c.HistoryTableName = strings.Repeat("h", 64) }, []string{"historyTableName", "2 to 62"}},
		"quoted table":   {func(c *engine.Config) { c.DLQTableName = "a`; DROP" }, []string{"dlqTableName", "a letter"}},
		"broker's table": {func(c *engine.Config) { c.HistoryTableName = "Job" }, []string{"historyTableName", `"Job"`, "no table of the broker"}},
		"one table":      {func(c *engine.Config) { c.HistoryTableName = "ENGINEDLQ" }, []string{"historyTableName", "another name"}},
		"no days":        {func(c *engine.Config) { c.RetentionDays = 0 }, []string{"retentionDays", `"0"`, "from 1 to 36500"}},
		"many days":      {func(c *engine.Config) { c.RetentionDays = 36501 }, []string{"retentionDays", `"36501"`}},
		"all":            {func(c *engine.Config) { *c = engine.Config{StorageAccountName: " "} }, []string{"storageAccountName", "dlqTableName", "historyTableName", "retentionDays"}},
	} {
		c := engine.DefaultConfig()
		tc.change(&c)
		err := c.Validate()
		if err == nil {
			t.Errorf("%s: it passes", name)
			continue
		}
		for _, part := range tc.says {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not say %q", name, err, part)
			}
		}
	}
}

// A table that a migration adds for the broker cannot be taken for dead letters or history.
func TestConfigKnowsTheTablesOfTheBroker(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../migration/sql/*.up.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no migrations: %v", err)
	}
	create := regexp.MustCompile("(?m)^CREATE TABLE (?:IF NOT EXISTS )?`?(\\w+)")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range create.FindAllStringSubmatch(string(text), -1) {
			c := engine.DefaultConfig()
			own := match[1] == c.DLQTableName || match[1] == c.HistoryTableName
			if c.DLQTableName = match[1]; strings.Contains(match[1], "_") {
				continue // no such name passes
			}
			if c.HistoryTableName = "another"; (c.Validate() == nil) != own {
				t.Errorf("%s, of %s: %v", match[1], file, c.Validate())
			}
		}
	}
}

// The field names of RFC-72, 5.
func TestConfigHasTheNamesOfTheRegistry(t *testing.T) {
	t.Parallel()
	var c engine.Config
	in := `{"storageAccountName":"s","dlqTableName":"d","historyTableName":"h","retentionDays":7}`
	if err := json.Unmarshal([]byte(in), &c); err != nil {
		t.Fatal(err)
	}
	if c != (engine.Config{StorageAccountName: "s", DLQTableName: "d", HistoryTableName: "h", RetentionDays: 7}) {
		t.Errorf("it is read as %+v", c)
	}
	out, err := json.Marshal(c)
	if err != nil || string(out) != in {
		t.Errorf("it is written as %s, %v", out, err)
	}
	var members map[string]any
	if err := json.Unmarshal(out, &members); err != nil || len(slices.Collect(maps.Keys(members))) != 4 {
		t.Errorf("its members are %v", members)
	}
}
