package alerts

import (
	"encoding/json"
	"errors"
	"fmt"
)

// alertmanagerVersion is that of the only format that Alertmanager's webhooks have had since 2016.
const alertmanagerVersion = "4"

func parseAlertmanager(body []byte) ([]Alert, error) {
	var webhook struct {
		Alerts []json.RawMessage `json:"alerts"`
	}
	if err := decode("the body", body, &webhook); err != nil {
		return nil, err
	}
	if webhook.Alerts == nil {
		return nil, errors.New("alerts is missing")
	}
	found := make([]Alert, len(webhook.Alerts))
	for i, raw := range webhook.Alerts {
		var err error
		if found[i], err = fromAlertmanager(raw); err != nil {
			return nil, fmt.Errorf("alerts[%d]: %w", i, err)
		}
	}
	return found, nil
}

func fromAlertmanager(raw json.RawMessage) (Alert, error) {
	var in struct {
		Status       Status            `json:"status"`
		Labels       map[string]string `json:"labels"`
		Annotations  map[string]string `json:"annotations"`
		StartsAt     string            `json:"startsAt"`
		EndsAt       string            `json:"endsAt"`
		GeneratorURL string            `json:"generatorURL"`
		Fingerprint  string            `json:"fingerprint"` // older releases have none
	}
	if err := decode("the alert", raw, &in); err != nil {
		return Alert{}, err
	}
	a := Alert{
		Source: Alertmanager, Status: in.Status, Name: in.Labels["alertname"], Severity: in.Labels["severity"], Description: in.Annotations["description"],
		Labels: in.Labels, Annotations: in.Annotations, GeneratorURL: in.GeneratorURL, Raw: raw,
	}
	if a.Description == "" {
		a.Description = in.Annotations["summary"]
	}
	if in.Fingerprint == "" && len(in.Labels) == 0 {
		return a, errors.New("it has neither fingerprint nor labels, so nothing tells it from others")
	}
	var err error
	if a.Fingerprint, err = fingerprint(in.Fingerprint, Alertmanager, in.Labels); err != nil {
		return a, err
	}
	if a.StartsAt, err = parseTime("startsAt", in.StartsAt); err != nil {
		return a, err
	}
	if a.StartsAt.IsZero() { // else one firing could not be told from the next
		return a, errors.New("startsAt is missing")
	}
	end, err := parseTime("endsAt", in.EndsAt)
	if err != nil {
		return a, err
	}
	if a.Status == Resolved { // of one that fires it is a guess
		a.EndsAt = end
	}
	if err := a.check(); err != nil {
		return a, err
	}
	return a.bounded()
}
