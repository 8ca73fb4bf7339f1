package alerts_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/engine/alerts"
)

// anAlert is an entry of Alertmanager's.
func anAlert(name, status, startsAt string) string {
	endsAt := "0001-01-01T00:00:00Z"
	if status == "resolved" {
		endsAt = "2026-03-01T11:00:00.25Z"
	}
	return `{"status":"` + status + `","labels":{"alertname":"` + name + `","severity":"critical","instance":"db-1"},` +
		`"annotations":{"summary":"` + name + ` on db-1","runbook":"https://runbooks.example/disk"},"startsAt":"` + startsAt + `","endsAt":"` + endsAt + `",` +
		`"generatorURL":"http://prometheus.example/graph?g0.expr=up","fingerprint":"f-` + name + `"}`
}

func webhook(alerts ...string) []byte {
	return []byte(`{"version":"4","groupKey":"{}:{alertname=\"x\"}","truncatedAlerts":0,"status":"firing","receiver":"redrive","groupLabels":{},"commonLabels":{},` +
		`"commonAnnotations":{},"externalURL":"http://alertmanager.example","alerts":[` + strings.Join(alerts, ",") + `]}`)
}

const (
	start   = "2026-03-01T10:00:00.123456789+01:00"
	alertID = "/subscriptions/0000/providers/Microsoft.AlertsManagement/alerts/B9569717"
)

func azure(condition, id string) []byte {
	return []byte(`{"schemaId":"azureMonitorCommonAlertSchema","data":{"essentials":{"alertId":"` + id + `","alertRule":"cpu","severity":"Sev3",` +
		`"signalType":"Metric","monitorCondition":"` + condition + `","monitoringService":"Platform","alertTargetIDs":["/subscriptions/0000/vm-2","/Subscriptions/0000/VM-1"],` +
		`"configurationItems":["vm-1"],"originAlertId":"o","firedDateTime":"2026-03-01T09:00:00.1234567Z","resolvedDateTime":"2026-03-01T09:05:00Z",` +
		`"description":"too hot","essentialsVersion":"1.0","alertContextVersion":"1.0"},"alertContext":{"condition":{"allOf":[{"metricValue":31.1}]}},"customProperties":null}}`)
}

func parse(t *testing.T, body []byte) []alerts.Alert {
	t.Helper()
	found, err := alerts.Parse(body)
	if err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return found
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestAlertmanagerIsRead(t *testing.T) {
	t.Parallel()
	firing, resolved := anAlert("disk", "firing", start), anAlert("load", "resolved", start)
	found := parse(t, webhook(firing, resolved))
	if len(found) != 2 {
		t.Fatalf("%d alerts", len(found))
	}
	want := `{"source":"alertmanager","fingerprint":"f-disk","status":"firing","name":"disk","severity":"critical","description":"disk on db-1",` +
		`"labels":{"alertname":"disk","instance":"db-1","severity":"critical"},"annotations":{"runbook":"https://runbooks.example/disk","summary":"disk on db-1"},` +
		`"startsAt":"2026-03-01T09:00:00.123456789Z","generatorURL":"http://prometheus.example/graph?g0.expr=up","raw":` + firing + `}`
	if got := asJSON(t, found[0]); got != want {
		t.Errorf("it is read as\n%s\nwant\n%s", got, want)
	}
	if a := found[1]; a.Status != alerts.Resolved || !a.EndsAt.Equal(time.Date(2026, 3, 1, 11, 0, 0, 250e6, time.UTC)) || string(a.Raw) != resolved {
		t.Errorf("the second is %+v", a)
	}
	if found := parse(t, webhook()); len(found) != 0 {
		t.Errorf("none are read as %v", found)
	}
}

func TestAzureMonitorIsRead(t *testing.T) {
	t.Parallel()
	found := parse(t, azure("Resolved", alertID))
	if len(found) != 1 {
		t.Fatalf("%d alerts", len(found))
	}
	a := found[0]
	if !strings.HasPrefix(string(a.Raw), `{"essentials":`) || !strings.Contains(string(a.Raw), `"metricValue":31.1`) {
		t.Errorf("raw is %s", a.Raw)
	}
	a.Raw = nil
	want := `{"source":"azure-monitor","fingerprint":"/subscriptions/0000/providers/microsoft.alertsmanagement/alerts/b9569717","status":"resolved",` +
		`"name":"cpu","severity":"Sev3","description":"too hot","labels":{"alertRule":"cpu","alertTargetIDs":"/subscriptions/0000/vm-2,/Subscriptions/0000/VM-1",` +
		`"monitoringService":"Platform","signalType":"Metric"},"startsAt":"2026-03-01T09:00:00.1234567Z","endsAt":"2026-03-01T09:05:00Z"}`
	if got := asJSON(t, a); got != want {
		t.Errorf("it is read as\n%s\nwant\n%s", got, want)
	}
	if a := parse(t, azure("Fired", alertID))[0]; a.Status != alerts.Firing || !a.EndsAt.IsZero() || a.Fingerprint != found[0].Fingerprint {
		t.Errorf("firing, it is %+v", a)
	}
	// What some services leave out or send as null.
	sparse := `{"schemaId":"azureMonitorCommonAlertSchema","data":{"essentials":{"alertId":"/a/1","alertRule":"budget","severity":null,"signalType":null,` +
		`"monitorCondition":"Fired","monitoringService":"CostAlerts","alertTargetIDs":null,"firedDateTime":null}}}`
	if a := parse(t, []byte(sparse))[0]; a.Name != "budget" || !a.StartsAt.IsZero() || a.ID() != "/a/1/firing" {
		t.Errorf("with little it is %+v", a)
	}
}

// What repeats has one id, what does not has another.
func TestIDs(t *testing.T) {
	t.Parallel()
	of := func(body []byte) string { return parse(t, body)[0].ID() }
	firing := of(webhook(anAlert("disk", "firing", start)))
	if firing != "f-disk/firing/2026-03-01T09:00:00.123456789Z" {
		t.Errorf("the id is %q", firing)
	}
	resolved := anAlert("disk", "resolved", start)
	for name, same := range map[string][2]string{
		"another time zone":  {firing, of(webhook(anAlert("disk", "firing", "2026-03-01T09:00:00.123456789Z")))},
		"another end":        {of(webhook(resolved)), of(webhook(strings.Replace(resolved, "11:00:00.25", "11:04:00", 1)))},
		"other letters":      {of(azure("Fired", alertID)), of(azure("Fired", strings.ToUpper(alertID)))},
		"labels' order":      {of(webhook(nameless(`"a":"1","b":"2"`))), of(webhook(nameless(`"b":"2","a":"1"`)))},
		"targets' order":     {of(azure("Fired", "")), of(bytes.Replace(azure("Fired", ""), []byte(`"/subscriptions/0000/vm-2","/Subscriptions/0000/VM-1"`), []byte(`"/subscriptions/0000/vm-1","/subscriptions/0000/vm-2"`), 1))},
		"a long fingerprint": {of(azure("Fired", strings.Repeat("ä", 300))), of(azure("fired", strings.Repeat("Ä", 300)))},
	} {
		if same[0] != same[1] {
			t.Errorf("%s: %q and %q", name, same[0], same[1])
		}
	}
	seen := map[string]string{}
	for name, body := range map[string][]byte{
		"firing": webhook(anAlert("disk", "firing", start)), "resolved": webhook(resolved), "another": webhook(anAlert("load", "firing", start)),
		"again": webhook(anAlert("disk", "firing", "2026-03-02T10:00:00Z")), "labels": webhook(nameless(`"a":"1"`)), "other labels": webhook(nameless(`"a":"2"`)),
		"azure": azure("Fired", alertID), "azure resolved": azure("Resolved", alertID), "azure without id": azure("Fired", ""),
		"azure without id, another rule": bytes.Replace(azure("Fired", ""), []byte(`"cpu"`), []byte(`"disk"`), 1),
		"azure without id, one target":   bytes.Replace(azure("Fired", ""), []byte(`,"/Subscriptions/0000/VM-1"`), nil, 1),
		"unprintable":                    webhook(strings.Replace(resolved, "f-disk", `f\ndisk`, 1)),
	} {
		id := of(body)
		if other, ok := seen[id]; ok {
			t.Errorf("%s and %s have the id %q", name, other, id)
		}
		seen[id] = name
	}
}

// nameless is an alert as releases without fingerprints send it.
func nameless(labels string) string {
	return `{"status":"firing","labels":{` + labels + `},"startsAt":"2026-03-01T10:00:00Z"}`
}

func TestAlertsAreBounded(t *testing.T) {
	t.Parallel()
	large := func(n int) []byte {
		return bytes.Replace(azure("Fired", alertID), []byte("31.1"), []byte(`"`+strings.Repeat("x", n)+`"`), 1)
	}
	if a := parse(t, large(alerts.MaxBytes-2000))[0]; a.Raw == nil {
		t.Error("an alert that fits has lost its raw form")
	}
	a := parse(t, large(alerts.MaxBytes))[0]
	if a.Raw != nil || a.Name != "cpu" {
		t.Errorf("an alert that does not fit is %.200s", asJSON(t, a))
	}
	if a := parse(t, []byte(strings.ReplaceAll(string(large(alerts.MaxBytes/4)), "x", "<")))[0]; a.Raw != nil { // six bytes each
		t.Error("an alert that does not fit as JSON has kept its raw form")
	}
	tooLarge := strings.Replace(anAlert("disk", "firing", start), "disk on db-1", strings.Repeat("x", alerts.MaxBytes), 1)
	if _, err := alerts.Parse(webhook(anAlert("load", "firing", start), tooLarge)); err == nil || !strings.Contains(err.Error(), "alerts[1]: it has ") {
		t.Errorf("an alert that does not fit without its raw form: %v", err)
	}
}

func TestWhatIsNoWebhookIsRefused(t *testing.T) {
	t.Parallel()
	good, fired := string(webhook(anAlert("disk", "firing", start))), string(azure("Fired", alertID))
	for name, tc := range map[string]struct{ body, says string }{
		"nothing":           {"", "the body is not JSON"},
		"half":              {good[:len(good)-1], "the body is not JSON"},
		"two":               {good + good, "the body is not JSON"},
		"a list":            {"[]", "the body: array is not"},
		"null":              {"null", "neither Alertmanager's version nor"},
		"another object":    {`{"title":"x"}`, "neither Alertmanager's version nor"},
		"other bytes":       {strings.Replace(good, "disk", "\xff", 1), "UTF-8"},
		"another version":   {strings.Replace(good, `"4"`, `"3"`, 1), `version: "3" is not "4"`},
		"a numeric version": {strings.Replace(good, `"4"`, `4`, 1), "version: number is not"},
		"no alerts":         {`{"version":"4"}`, "alerts is missing"},
		"null for alerts":   {`{"version":"4","alerts":null}`, "alerts is missing"},
		"an alert of text":  {`{"version":"4","alerts":["x"]}`, "alerts[0]: the alert: string is not"},
		"another status":    {strings.Replace(good, `"status":"firing","labels"`, `"status":"pending","labels"`, 1), `alerts[0]: status: "pending" is neither`},
		"labels of numbers": {strings.Replace(good, `"critical"`, `1`, 1), "alerts[0]: labels"},
		"no start":          {strings.Replace(good, start, "", 1), "alerts[0]: startsAt is missing"},
		"a start at zero":   {strings.Replace(good, start, "0001-01-01T00:00:00Z", 1), "alerts[0]: startsAt is missing"},
		"a start in words":  {strings.Replace(good, start, "yesterday", 1), `alerts[0]: startsAt: "yesterday" is no time`},
		"a start too late":  {strings.Replace(good, start, "9999-12-31T23:59:59-01:00", 1), "alerts[0]: startsAt"},
		"an end in words":   {strings.Replace(good, "0001-01-01T00:00:00Z", "tomorrow", 1), "alerts[0]: endsAt"},
		"no identity":       {`{"version":"4","alerts":[{"status":"firing","startsAt":"` + start + `"}]}`, "alerts[0]: it has neither fingerprint nor labels"},
		"another schema":    {strings.Replace(fired, "azureMonitorCommonAlertSchema", "AzureMonitorMetricAlert", 1), "enable the common alert schema"},
		"no data":           {`{"schemaId":"azureMonitorCommonAlertSchema"}`, "data.essentials is missing"},
		"no essentials":     {`{"schemaId":"azureMonitorCommonAlertSchema","data":{"alertContext":{}}}`, "data.essentials is missing"},
		"data of text":      {`{"schemaId":"azureMonitorCommonAlertSchema","data":"x"}`, "data: string is not"},
		"another condition": {strings.Replace(fired, `"Fired"`, `"Acknowledged"`, 1), `monitorCondition: "Acknowledged" is neither`},
		"a fired in words":  {strings.Replace(fired, "2026-03-01T09:00:00.1234567Z", "3/1/2026", 1), `firedDateTime: "3/1/2026" is no time`},
		"an end of azure's": {strings.Replace(fired, "2026-03-01T09:05:00Z", "soon", 1), "resolvedDateTime"},
		"azure unnamed":     {`{"schemaId":"azureMonitorCommonAlertSchema","data":{"essentials":{"monitorCondition":"Fired","alertRule":"cpu"}}}`, "neither alertId nor both"},
		"targets of text":   {strings.Replace(fired, `["vm-1"],`, `[],"alertTargetIDs":"x",`, 1), "essentials.alertTargetIDs: string is not"},
	} {
		found, err := alerts.Parse([]byte(tc.body))
		if !errors.Is(err, alerts.ErrUnreadable) || !strings.Contains(err.Error(), tc.says) || found != nil {
			t.Errorf("%s: %v, %v; want %q", name, found, err, tc.says)
		}
		if err != nil && (len(err.Error()) > 400 || strings.Contains(err.Error(), "Go ")) {
			t.Errorf("%s: nobody wants to read %q", name, err)
		}
	}
}

func TestMessagesOfWhatIsNoAlertAreRefused(t *testing.T) {
	t.Parallel()
	for _, a := range []alerts.Alert{
		{}, {Fingerprint: "f"}, {Fingerprint: "a b", Status: alerts.Firing}, {Fingerprint: strings.Repeat("f", 201), Status: alerts.Firing},
		{Fingerprint: "f", Status: alerts.Firing, Raw: json.RawMessage("{")},
	} {
		if m, err := alerts.Message(a); err == nil {
			t.Errorf("%+v makes %+v", a, m)
		}
	}
}

var idPattern = regexp.MustCompile(`^[!-~]{1,241}$`)

// What is read makes messages that the queue and the history can keep, and comes out of them as it went in.
func FuzzParse(f *testing.F) {
	f.Add(webhook(anAlert("disk", "firing", start), anAlert("disk", "resolved", start), nameless(`"a":"1"`)))
	f.Add(webhook(nameless(`"<a>":"\u0000 \ud800"`)))
	f.Add(azure("Fired", alertID))
	f.Add(azure("Resolved", ""))
	f.Add([]byte(`{"schemaId":"azureMonitorCommonAlertSchema","data":{"essentials":{"alertId":" ","monitorCondition":"Fired"}}}`))
	f.Add([]byte(`{"version":"4","alerts":[{"status":"firing","labels":{"a":""},"startsAt":"0000-01-01T00:00:00+23:59"}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		found, err := alerts.Parse(body)
		if err != nil {
			if !errors.Is(err, alerts.ErrUnreadable) || found != nil {
				t.Fatalf("%v, %v", found, err)
			}
			return
		}
		again := parse(t, body)
		for i, a := range found {
			m, err := alerts.Message(a)
			if err != nil {
				t.Fatalf("%+v: %v", a, err)
			}
			if !idPattern.MatchString(m.CorrelationID) || m.CorrelationID != a.ID() || m.InstanceID != a.Fingerprint || again[i].ID() != a.ID() {
				t.Fatalf("its message is %+v", m)
			}
			var out alerts.Alert
			if err := json.Unmarshal(m.Input, &out); err != nil || out.ID() != a.ID() || asJSON(t, out) != string(m.Input) || len(m.Input) > alerts.MaxBytes {
				t.Fatalf("%s comes out as %+v, %v", m.Input, out, err)
			}
		}
	})
}
