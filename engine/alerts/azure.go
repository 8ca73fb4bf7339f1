package alerts

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

const azureSchema = "azureMonitorCommonAlertSchema"

// essentials are what all of Azure Monitor's alerts have in common.
type essentials struct {
	AlertID           string   `json:"alertId"`
	AlertRule         string   `json:"alertRule"`
	Severity          string   `json:"severity"`
	SignalType        string   `json:"signalType"`
	MonitorCondition  string   `json:"monitorCondition"`
	MonitoringService string   `json:"monitoringService"`
	AlertTargetIDs    []string `json:"alertTargetIDs"`
	FiredDateTime     string   `json:"firedDateTime"`
	ResolvedDateTime  string   `json:"resolvedDateTime"`
	Description       string   `json:"description"`
	InvestigationLink string   `json:"investigationLink"`
}

func parseAzure(body []byte) ([]Alert, error) {
	var webhook struct {
		Data json.RawMessage `json:"data"`
	}
	if err := decode("the body", body, &webhook); err != nil {
		return nil, err
	}
	var data struct {
		Essentials *essentials `json:"essentials"`
	}
	if webhook.Data != nil {
		if err := decode("data", webhook.Data, &data); err != nil {
			return nil, err
		}
	}
	if data.Essentials == nil {
		return nil, errors.New("data.essentials is missing")
	}
	a, err := fromAzure(*data.Essentials)
	if err != nil {
		return nil, fmt.Errorf("data.essentials: %w", err)
	}
	a.Raw = webhook.Data
	if a, err = a.bounded(); err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	return []Alert{a}, nil
}

func fromAzure(in essentials) (Alert, error) {
	a := Alert{
		Source: AzureMonitor, Name: in.AlertRule, Severity: in.Severity, Description: in.Description, GeneratorURL: in.InvestigationLink,
		Labels: map[string]string{},
	}
	switch {
	case strings.EqualFold(in.MonitorCondition, "Fired"):
		a.Status = Firing
	case strings.EqualFold(in.MonitorCondition, "Resolved"):
		a.Status = Resolved
	default:
		return a, fmt.Errorf("monitorCondition: %.64q is neither Fired nor Resolved", in.MonitorCondition)
	}
	for name, value := range map[string]string{
		"alertRule": in.AlertRule, "signalType": in.SignalType, "monitoringService": in.MonitoringService,
		"alertTargetIDs": strings.Join(in.AlertTargetIDs, ","),
	} {
		if value != "" {
			a.Labels[name] = value
		}
	}
	var err error
	if a.StartsAt, err = parseTime("firedDateTime", in.FiredDateTime); err != nil {
		return a, err
	}
	end, err := parseTime("resolvedDateTime", in.ResolvedDateTime)
	if err != nil {
		return a, err
	}
	if a.Status == Resolved {
		a.EndsAt = end
	}
	// alertId is of one alert from its firing to its resolving. What Azure compares without regard to letters' case, it
	// also writes so.
	if in.AlertID == "" && (in.AlertRule == "" || a.StartsAt.IsZero()) {
		return a, errors.New("it has neither alertId nor both alertRule and firedDateTime, so nothing tells it from others")
	}
	targets := slices.Clone(in.AlertTargetIDs)
	for i := range targets {
		targets[i] = strings.ToLower(targets[i])
	}
	slices.Sort(targets)
	a.Fingerprint, err = fingerprint(strings.ToLower(in.AlertID), AzureMonitor, in.AlertRule, in.SignalType, in.MonitoringService, targets)
	return a, err
}
