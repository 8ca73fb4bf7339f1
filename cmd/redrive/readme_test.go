package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/app"
)

// Each setting that a document names is one.
func TestDocumentsNameSettings(t *testing.T) {
	t.Parallel()
	known := map[string]bool{
		"REDRIVE_TEST_DSN":      true, // of make test
		app.EnvName(configFlag): true,
	}
	for _, s := range (&app.Config{}).Settings() {
		known[s.Env] = true
	}
	documents, err := filepath.Glob("../../docs/decisions/*.md")
	if err != nil || len(documents) == 0 {
		t.Fatalf("%d decisions: %v", len(documents), err)
	}
	named := 0
	for _, path := range append(documents, "../../README.md", "../../CHANGELOG.md", "../../docs/architecture.md", "../../docs/openapi.yaml") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`\bREDRIVE_[A-Z_]+`).FindAllString(string(text), -1) {
			named++
			if !known[name] {
				t.Errorf("%s: %s is no setting", path, name)
			}
		}
	}
	if named == 0 {
		t.Error("no document names any")
	}
}

// nagiosCheck is the check that the README gives.
func nagiosCheck(t *testing.T) string {
	t.Helper()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(readme), "**Nagios**")
	if !ok {
		t.Fatal("the README says nothing of Nagios")
	}
	_, rest, _ = strings.Cut(rest, "```sh\n")
	check, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("the README has no check for Nagios")
	}
	return check
}

// The check never says OK where it does not know. Whatever is wrong before its number is exit status 3, UNKNOWN.
func TestNagiosCheckOfTheReadme(t *testing.T) {
	t.Parallel()
	check := nagiosCheck(t)
	const there = `{"consumers":[{"channelId":"order-events","consumerId":"payment-service","deadCount":N},{"channelId":"x","consumerId":"payment-service","deadCount":5}]}`
	type programs struct{ curl, jq string } // an empty jq is the machine's own
	cases := map[string]struct {
		programs

		want int
	}{
		"down":      {programs{"echo refused >&2; exit 7", "exit 0"}, 3},
		"no JSON":   {programs{"echo '<html>'", "exit 2"}, 3},
		"misspelt":  {programs{"echo '{}'", "exit 5"}, 3},
		"fine":      {programs{"echo '{}'", "echo 0"}, 0},
		"one dead":  {programs{"echo '{}'", "echo 1"}, 1},
		"many dead": {programs{"echo '{}'", "echo 1000"}, 2},
	}
	if _, err := exec.LookPath("jq"); err == nil { // not every machine that runs tests has it
		for name, c := range map[string]struct {
			body string
			want int
		}{
			"JSON, fine":      {strings.Replace(there, "N", "0", 1), 0},
			"JSON, dead":      {strings.Replace(there, "N", "17", 1), 1},
			"JSON, misspelt":  {strings.Replace(there, "order-events", "orders", 1), 3},
			"JSON, others":    {`{"consumers":[]}`, 3},
			"JSON, different": {`{"status":"ok"}`, 3},
			"JSON, none":      {"", 3},
			"JSON, HTML":      {"<html>", 3},
		} {
			cases[name] = struct {
				programs

				want int
			}{programs{curl: "echo '" + c.body + "'"}, c.want}
		}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := "curl() { " + c.curl + "; }\n" + check
			if c.jq != "" {
				script = "jq() { " + c.jq + "; }\n" + script
			}
			cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if got := cmd.ProcessState.ExitCode(); got != c.want {
				t.Errorf("exit status %d, want %d: %s", got, c.want, out)
			}
		})
	}
}
