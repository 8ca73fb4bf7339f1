package app

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"time"
	"unicode"
)

// SettingError says which setting has a value that is not allowed. It never shows a secret.
type SettingError struct {
	Env     string // as REDRIVE_DATA_DIR
	Value   string // as it was given; of a secret: why it is refused
	Secret  bool
	Allowed string // in words
}

func (e *SettingError) Error() string {
	if e.Secret {
		reason := e.Value
		if reason != "" {
			reason = " (" + reason + ")"
		}
		return fmt.Sprintf("%s: its value is not allowed%s: must be %s", e.Env, reason, e.Allowed)
	}
	return fmt.Sprintf("%s: %q is not allowed: must be %s", e.Env, e.Value, e.Allowed)
}

// Setting is one field of Config with its value.
type Setting struct {
	Env    string // the environment variable, as REDRIVE_DATA_DIR
	Value  string // "(set)" and "(not set)" for secrets
	Secret bool
}

// Settings lists all settings in the order of Config. It shows no secret.
func (c *Config) Settings() []Setting {
	t, v := reflect.TypeFor[Config](), reflect.ValueOf(c).Elem()
	all := make([]Setting, t.NumField())
	for i := range t.NumField() {
		_, secret := t.Field(i).Tag.Lookup("secret")
		value := hideInURLs(t.Field(i), show(v.Field(i).Interface()))
		if secret {
			value = map[bool]string{true: "(not set)", false: "(set)"}[v.Field(i).Len() == 0]
		}
		all[i] = Setting{Env: EnvName(t.Field(i).Name), Value: value, Secret: secret}
	}
	return all
}

// EnvName is the environment variable of a setting that is named as a field of Config (DatabaseDSN), as a flag
// (database-dsn), or with a dot for a dash.
func EnvName(setting string) string {
	var name strings.Builder
	name.WriteString("REDRIVE_")
	runes := []rune(setting)
	for i, r := range runes {
		switch {
		case r == '-' || r == '.':
			r = '_'
		case i > 0 && unicode.IsUpper(r) && (unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])):
			name.WriteRune('_') // a new word: aB, or the last capital of ABc
		}
		name.WriteRune(unicode.ToUpper(r))
	}
	return name.String()
}

func show(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case []string:
		return strings.Join(v, ",")
	case []time.Duration:
		parts := make([]string, len(v))
		for i, d := range v {
			parts[i] = d.String()
		}
		return strings.Join(parts, ",")
	}
	return fmt.Sprint(value)
}

// validator gathers what is wrong with a Config.
type validator struct {
	config *Config
	found  []error
}

func (v *validator) errs() error { return errors.Join(v.found...) }

// must is for the settings whose tag says all that there is to say.
func (v *validator) must(field string, ok bool) {
	if !ok {
		v.wrong(field, "")
	}
}

func (v *validator) between(field string, n, least, most int64) {
	v.must(field, n >= least && n <= most)
}

func (v *validator) lasting(field string, d, least, most time.Duration) {
	v.must(field, d >= least && d <= most)
}

// wrong records that the value of a field is not allowed; reason is shown for secrets, in place of the value.
func (v *validator) wrong(field, reason string) {
	e := settingError(field, reason)
	if !e.Secret {
		e.Value = show(reflect.ValueOf(v.config).Elem().FieldByName(field).Interface())
	}
	v.found = append(v.found, e)
}

// because adds a reason to what is allowed.
func (e *SettingError) because(reason error) *SettingError {
	e.Allowed += " (" + strings.ReplaceAll(reason.Error(), "\n", "; ") + ")" // joined errors, on one line
	return e
}

// settingError is the error of a field of Config; value is, of a secret, why it is refused.
func settingError(field, value string) *SettingError {
	f, ok := reflect.TypeFor[Config]().FieldByName(field)
	if !ok {
		panic("there is no setting " + field)
	}
	_, secret := f.Tag.Lookup("secret")
	return &SettingError{Env: EnvName(field), Value: hideInURLs(f, value), Secret: secret, Allowed: f.Tag.Get("allowed")}
}

// urlUser and urlQuery find what URLs keep secrets in, also within text that is no JSON although it should be.
var (
	urlUser  = regexp.MustCompile(`(:\\?/\\?/)[^/?#"\s]*@`)
	urlQuery = regexp.MustCompile(`(:\\?/\\?/[^?"\s]*\?)[^"\s]+`)
)

// hideInURLs leaves the users and queries of URLs out of a setting that has some (tag urls).
func hideInURLs(f reflect.StructField, value string) string {
	if _, has := f.Tag.Lookup("urls"); !has {
		return value
	}
	return urlQuery.ReplaceAllString(urlUser.ReplaceAllString(value, "$1...@"), "$1...")
}
