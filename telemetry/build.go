package telemetry

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Build says what program this is.
type Build struct {
	Version  string // of the module, as v1.2.3; "devel" for a build of a checkout
	Revision string // of the sources, "unknown" if the build does not say; ends in "+changes" if they were changed
	Go       string // as go1.26.0
}

// ReadBuild reads what the Go toolchain wrote into this binary.
func ReadBuild() Build {
	b := Build{Version: "devel", Revision: "unknown", Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		b.Version = v
	}
	changed := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			changed = s.Value == "true"
		}
	}
	if changed {
		b.Revision += "+changes"
	}
	return b
}

func (b Build) String() string {
	return fmt.Sprintf("redrive %s (%s, %s, %s/%s)", b.Version, b.Revision, b.Go, runtime.GOOS, runtime.GOARCH)
}
