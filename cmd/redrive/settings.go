package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"github.com/redrive-mq/redrive/internal/app"
)

const configFlag = "config"

// helpWithEnv adds to a setting's help its environment variable, and its default where the flag does not show it.
func helpWithEnv(value *kong.Value) string {
	if !isSetting(value) {
		return value.Help
	}
	help := value.Help
	if value.Default != "" && (value.Tag.PlaceHolder != "" || value.IsBool()) {
		help += " Default: " + value.Default + "."
	}
	return help + " [" + app.EnvName(value.Name) + "]"
}

// isSetting tells the flags of settings from those that belong to one command.
func isSetting(value *kong.Value) bool {
	return value.Name == configFlag || value.Tag.Has("allowed")
}

// settingMappers read values in place of kong's own mappers, so that every refusal has the same form and none shows a
// secret.
func settingMappers() kong.Option {
	return kong.OptionFunc(func(k *kong.Kong) error {
		for _, o := range []kong.Option{
			kong.KindMapper(reflect.Int, whole), kong.KindMapper(reflect.Int64, whole),
			kong.KindMapper(reflect.Bool, boolean{}),
			kong.TypeMapper(reflect.TypeFor[time.Duration](), duration),
			kong.TypeMapper(reflect.TypeFor[map[string]string](), kong.MapperFunc(named)),
		} {
			if err := o.Apply(k); err != nil {
				return err
			}
		}
		return nil
	})
}

var whole = mapper(func(text string, target reflect.Value) error {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, target.Type().Bits())
	target.SetInt(n)
	return err
})

var duration = mapper(func(text string, target reflect.Value) error {
	d, err := time.ParseDuration(strings.TrimSpace(text))
	target.SetInt(int64(d))
	return err
})

// named reads NAME=VALUE;... where the command line or the environment has it, so that no value there holds a semicolon;
// the file has a mapping, whose values are taken as they are.
func named(ctx *kong.DecodeContext, target reflect.Value) error {
	token, err := ctx.Scan.PopValue("value")
	if err != nil {
		return err
	}
	values, ok := token.Value.(map[string]string)
	if !ok {
		text := fmt.Sprint(token.Value)
		if values, ok = parseNamed(text); !ok {
			return refused(ctx.Value, text)
		}
	}
	target.Set(reflect.ValueOf(values))
	return nil
}

func parseNamed(text string) (map[string]string, bool) {
	values := map[string]string{}
	for part := range strings.SplitSeq(text, ";") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		if _, twice := values[name]; !ok || twice {
			return nil, false
		}
		values[name] = value
	}
	return values, true
}

// mapper makes a kong mapper of a parser; what the parser refuses becomes an *app.SettingError.
func mapper(parse func(text string, target reflect.Value) error) kong.MapperFunc {
	return func(ctx *kong.DecodeContext, target reflect.Value) error {
		token, err := ctx.Scan.PopValue("value")
		if err != nil {
			return err
		}
		text := fmt.Sprint(token.Value)
		if parse(text, target) != nil {
			return refused(ctx.Value, text)
		}
		return nil
	}
}

func refused(value *kong.Value, text string) error {
	_, secret := value.Tag.Get("secret"), value.Tag.Has("secret")
	name := "--" + value.Name
	if isSetting(value) {
		name = app.EnvName(value.Name)
	}
	allowed := value.Tag.Get("allowed")
	if allowed == "" {
		allowed = "a " + value.Target.Type().String()
	}
	if secret {
		text = ""
	}
	return &app.SettingError{Env: name, Value: text, Secret: secret, Allowed: allowed}
}

// boolean is a flag that may stand without a value.
type boolean struct{}

func (boolean) IsBool() bool { return true }

func (boolean) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	if ctx.Scan.Peek().Type != kong.FlagValueToken {
		target.SetBool(true)
		return nil
	}
	text := fmt.Sprint(ctx.Scan.Pop().Value)
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "true", "1", "yes", "on":
		target.SetBool(true)
	case "false", "0", "no", "off":
		target.SetBool(false)
	default:
		return refused(ctx.Value, text)
	}
	return nil
}

// settingResolver gives flags that are not on the command line their value: the environment's, else the file's. An
// empty variable is one that is not set: compose files pass on variables that way.
type settingResolver struct {
	model     *kong.Application
	lookupEnv func(string) (string, bool)
	file      map[string]any // strings, and for admin-tokens a map of strings; nil: not yet read
}

// Validate implements kong.Resolver.
func (*settingResolver) Validate(*kong.Application) error { return nil }

// Resolve implements kong.Resolver.
func (r *settingResolver) Resolve(ctx *kong.Context, parent *kong.Path, flag *kong.Flag) (any, error) {
	if !isSetting(flag.Value) {
		return nil, nil
	}
	if text, ok := r.lookupEnv(app.EnvName(flag.Name)); ok && text != "" {
		return text, nil
	}
	if flag.Name == configFlag {
		return nil, nil
	}
	if r.file == nil {
		if err := r.load(r.path(ctx, parent)); err != nil {
			return nil, err
		}
	}
	if value, ok := r.file[flag.Name]; ok {
		return value, nil
	}
	return nil, nil
}

// path finds the file's path: on the command line, else in the environment.
func (r *settingResolver) path(ctx *kong.Context, parent *kong.Path) string {
	for _, flag := range parent.Flags {
		if flag.Name == configFlag {
			if path, ok := ctx.FlagValue(flag).(string); ok && path != "" {
				return path
			}
		}
	}
	path, _ := r.lookupEnv(app.EnvName(configFlag))
	return path
}

// load reads the file; a key that is no setting is an error, as it is likely a setting with a typo.
func (r *settingResolver) load(path string) error {
	r.file = map[string]any{}
	if path == "" {
		return nil
	}
	wrong := func(why string) error {
		return &app.SettingError{Env: app.EnvName(configFlag), Value: path, Allowed: "a YAML file of settings (" + why + ")"}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
			err = pathErr.Err
		}
		return wrong(err.Error())
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return wrong("it is no YAML")
	}
	if len(document.Content) == 0 {
		return nil
	}
	if err := flatten(document.Content[0], "", r.file); err != nil {
		return wrong(err.Error())
	}
	for name := range r.file {
		if !r.known(name) {
			return wrong("there is no setting " + name)
		}
	}
	return nil
}

func (r *settingResolver) known(name string) bool {
	for _, command := range r.model.Leaves(false) {
		for _, group := range command.AllFlags(false) {
			if slices.ContainsFunc(group, func(f *kong.Flag) bool { return f.Name == name && isSetting(f.Value) }) {
				return true
			}
		}
	}
	return false
}

// jsonSettings are JSON elsewhere and may be a mapping in the file.
func jsonSettings() []string { return []string{"engines", "engine-tables-config"} }

// flatten writes the scalars of a mapping to out by their path, joined with dashes: broker: {max-retry: 3} is
// broker-max-retry. A list is its elements with commas between. admin-tokens is a mapping itself.
func flatten(node *yaml.Node, prefix string, out map[string]any) error {
	switch {
	case node.Kind == yaml.ScalarNode && prefix != "":
		if node.Tag != "!!null" {
			out[prefix] = node.Value
		}
	case node.Kind == yaml.SequenceNode && prefix != "":
		parts := make([]string, len(node.Content))
		for i, child := range node.Content {
			if child.Kind != yaml.ScalarNode {
				return fmt.Errorf("%s is a list of something else than plain values, line %d", prefix, child.Line)
			}
			parts[i] = child.Value
		}
		out[prefix] = strings.Join(parts, ",")
	case node.Kind == yaml.MappingNode && prefix == "admin-tokens":
		tokens := map[string]string{}
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i+1].Kind != yaml.ScalarNode {
				return fmt.Errorf("%s has something else than a name and a token, line %d", prefix, node.Content[i].Line)
			}
			tokens[node.Content[i].Value] = node.Content[i+1].Value
		}
		out[prefix] = tokens
	case node.Kind == yaml.MappingNode && slices.Contains(jsonSettings(), prefix):
		var value any
		if err := node.Decode(&value); err != nil {
			return fmt.Errorf("%s is no mapping of plain values, line %d", prefix, node.Line)
		}
		text, err := json.Marshal(value)
		if err != nil {
			return fmt.Errorf("%s is no mapping of plain values, line %d", prefix, node.Line)
		}
		out[prefix] = string(text)
	case node.Kind == yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			name := node.Content[i].Value
			if prefix != "" {
				name = prefix + "-" + name
			}
			if err := flatten(node.Content[i+1], name, out); err != nil {
				return err
			}
		}
	default:
		return fmt.Errorf("line %d is no setting", node.Line)
	}
	return nil
}

// refusal is the text for a command line or setting that is wrong.
func refusal(err error) string {
	if wrong, ok := errors.AsType[*app.SettingError](err); ok {
		return wrong.Error()
	}
	return err.Error()
}
