package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/modfile"
	gomod "golang.org/x/mod/module"
	versions "golang.org/x/mod/semver"

	"github.com/recast-sh/recast/internal/sim/must"
)

func TestImports(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t, false) {
		for _, problem := range checkImports(s) {
			t.Error(problem)
		}
	}
}

// checkImports lists a file's imports that the table does not allow.
func checkImports(s source) []string {
	known := slices.ContainsFunc(table, func(r row) bool { return r.files == "" && matches(r.pkg, s.pkg) })
	if !known {
		return []string{s.path() + ": " + s.pkg + " has no row in the table of internal/arch"}
	}
	var problems []string
	for _, spec := range s.file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil || !allowed(s, imported) {
			problems = append(problems, fmt.Sprintf("%s:%d: %s may not import %s", s.path(), s.line(spec.Pos()), s.pkg, imported))
		}
	}
	return problems
}

// TestEveryAllowanceIsUsed: what nothing imports is a door that nobody would see opened.
func TestEveryAllowanceIsUsed(t *testing.T) {
	t.Parallel()
	all := sources(t, false)
	for _, r := range table {
		for _, pattern := range r.allow {
			if !strings.HasPrefix(pattern, "!") && !slices.ContainsFunc(all, func(s source) bool { return r.uses(s, pattern) }) {
				t.Errorf("%s %s: nothing imports %s", r.pkg, r.files, pattern)
			}
		}
	}
}

// uses reports whether a file of the row imports what the pattern allows.
func (r row) uses(s source, pattern string) bool {
	if !r.speaksOf(s) || r.files == "" && s.test() {
		return false
	}
	return slices.ContainsFunc(s.file.Imports, func(spec *ast.ImportSpec) bool {
		imported, err := strconv.Unquote(spec.Path.Value)
		return err == nil && matches(pattern, strings.TrimPrefix(imported, module+"/"))
	})
}

// harnesses are the packages that only tests import and that may import testing.
var harnesses = []string{
	"cluster/clustertest", "cluster/clustertest/vmsetting", "cluster/exchange/exchangetest", "cluster/observe/observetest", "cluster/rolling/rollingtest",
	"internal/pve/api/apitest", "internal/sim/apidoc/apidoctest", "internal/sim/must", "internal/sim/simtest", "internal/sim/schedules", "internal/web/frame/frametest",
}

func allowed(s source, imported string) bool {
	own, ours := strings.CutPrefix(imported, module+"/")
	switch {
	case !ours && !strings.Contains(strings.Split(imported, "/")[0], "."):
		return s.test() || slices.Contains(harnesses, s.pkg) || !matches("testing/...", imported)
	case own == s.pkg:
		return s.test() // an external test of its own package
	case slices.Contains(harnesses, own) && !s.test() && !slices.Contains(harnesses, s.pkg):
		return false
	}
	return slices.ContainsFunc(table, func(r row) bool {
		return r.speaksOf(s) && r.allows(own)
	})
}

func (r row) speaksOf(s source) bool {
	if !matches(r.pkg, s.pkg) {
		return false
	}
	if r.files == "" {
		return true // tests may import what their package may
	}
	ok, err := path.Match(r.files, s.name)
	return ok && err == nil
}

func (r row) allows(imported string) bool {
	ok := false
	for _, pattern := range r.allow {
		taken, back := strings.CutPrefix(pattern, "!")
		if back && matches(taken, imported) {
			return false
		}
		ok = ok || matches(pattern, imported)
	}
	return ok
}

func matches(pattern, name string) bool {
	prefix, below := strings.CutSuffix(pattern, "...")
	if !below {
		return pattern == name
	}
	return strings.HasPrefix(name+"/", prefix)
}

func TestCheckImports(t *testing.T) {
	t.Parallel()
	const us = module + "/"
	cases := map[string]struct {
		pkg, file, imports string
		want               []string
	}{
		"standard library":            {"cluster", "a.go", "net/http", nil},
		"as in the table":             {"cluster", "a.go", us + "internal/wait", nil},
		"no row":                      {"internal/new", "a.go", "fmt", []string{"internal/new/a.go: internal/new has no row in the table of internal/arch"}},
		"a test of no row":            {"internal/new", "a_test.go", "fmt", []string{"internal/new/a_test.go: internal/new has no row in the table of internal/arch"}},
		"domain to adapter":           {"cluster", "a.go", us + "internal/pve", []string{"cluster/a.go:2: cluster may not import " + us + "internal/pve"}},
		"domain's test to adapter":    {"cluster", "a_test.go", us + "internal/pve", []string{"cluster/a_test.go:2: cluster may not import " + us + "internal/pve"}},
		"domain's test to the lab":    {"cluster", "a_test.go", us + "internal/sim/simtest", nil},
		"its own package from a test": {"cluster", "a_test.go", us + "cluster", nil},
		"domain to the lab":           {"cluster", "a.go", us + "internal/sim", []string{"cluster/a.go:2: cluster may not import " + us + "internal/sim"}},
		"adapter to pipeline":         {"internal/kube", "a.go", us + "pipeline", []string{"internal/kube/a.go:2: internal/kube may not import " + us + "pipeline"}},
		"go-proxmox":                  {"internal/pve/api", "a.go", proxmox, nil},
		"go-proxmox elsewhere":        {"images", "a.go", proxmox, []string{"images/a.go:2: images may not import " + proxmox}},
		"a longer name":               {"internal/pve/api", "a.go", proxmox + "2", []string{"internal/pve/api/a.go:2: internal/pve/api may not import " + proxmox + "2"}},
		"lab command to the lab":      {"internal/lab", "demo.go", us + "internal/sim", nil},
		"other command to the lab":    {"cmd/recast", "roll.go", us + "internal/sim", []string{"cmd/recast/roll.go:2: cmd/recast may not import " + us + "internal/sim"}},
		"lab command past the facade": {"internal/lab", "up.go", us + "internal/sim/world", []string{"internal/lab/up.go:2: internal/lab may not import " + us + "internal/sim/world"}},
		"the lab to recast":           {"internal/sim/world", "a.go", us + "cluster", []string{"internal/sim/world/a.go:2: internal/sim/world may not import " + us + "cluster"}},
		"the lab to testing":          {"internal/sim/world", "a.go", "testing", []string{"internal/sim/world/a.go:2: internal/sim/world may not import testing"}},
		"the lab to a client":         {"internal/sim/talosapi", "a.go", "github.com/siderolabs/talos/pkg/machinery/client", []string{"internal/sim/talosapi/a.go:2: internal/sim/talosapi may not import github.com/siderolabs/talos/pkg/machinery/client"}},
		"the lab's test to a client":  {"internal/sim/talosapi", "a_test.go", "github.com/siderolabs/talos/pkg/machinery/client", nil},
		"the harness to anything":     {"internal/sim/simtest", "a.go", us + "pipeline", nil},
		"recast to a harness":         {"cluster/rolling", "a.go", us + "cluster/clustertest", []string{"cluster/rolling/a.go:2: cluster/rolling may not import " + us + "cluster/clustertest"}},
		"the harness to testing":      {"internal/sim/simtest", "a.go", "testing/synctest", nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := must.Get(parse(c.pkg, c.file, []byte("package x\nimport _ "+strconv.Quote(c.imports)+"\n")))(t)
			diff := cmp.Diff(c.want, checkImports(s))
			must.Hold(t, diff == "", "problems (-want +got):\n%s", diff)
		})
	}
}

// TestOrderOfRooms: the table of rooms in CONTRIBUTING.md has every package of cluster, and each of them imports
// only those named before it.
func TestOrderOfRooms(t *testing.T) {
	t.Parallel()
	text := must.Get(os.ReadFile("../../CONTRIBUTING.md"))(t)
	var rooms []string
	for _, row := range regexp.MustCompile("(?m)^\\| `.*? \\|").FindAllString(string(text), -1) {
		for _, name := range regexp.MustCompile("`([a-z]+)`").FindAllStringSubmatch(row, -1) {
			rooms = append(rooms, "cluster/"+name[1])
		}
	}
	for _, s := range sources(t, false) {
		if s.test() || s.pkg == "cluster/clustertest" || path.Dir(s.pkg) != "cluster" {
			continue
		}
		own := slices.Index(rooms, s.pkg)
		must.Be(t, own >= 0, "CONTRIBUTING.md has no row for %s", s.pkg)
		for _, spec := range s.file.Imports {
			imported, _ := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module+"/")
			if slices.Contains(rooms[own:], imported) {
				t.Errorf("%s: %s imports %s, which CONTRIBUTING.md names after it", s.path(), s.pkg, imported)
			}
		}
	}
}

const noRelease = "it has no release"

// commits are the dependencies that are a commit and not a release, and why.
var commits = map[string][]string{
	noRelease: {
		"github.com/Azure/go-ansiterm", "github.com/charmbracelet/ultraviolet", "github.com/exponent-io/jsonpath", "github.com/golang/groupcache",
		"github.com/jbenet/go-context", "github.com/liggitt/tabwriter", "github.com/modern-go/concurrent", "github.com/monochromegane/go-gitignore",
		"github.com/munnerz/goautoneg", "github.com/petermattis/goid", "github.com/pkg/browser", "github.com/xo/terminfo", "golang.org/x/exp",
		"google.golang.org/genproto/googleapis/api", "google.golang.org/genproto/googleapis/rpc", "k8s.io/kube-openapi", "k8s.io/utils", "sigs.k8s.io/json",
	},
	"Kubernetes requires that commit": {
		"github.com/davecgh/go-spew", "github.com/gorilla/websocket", "github.com/modern-go/reflect2", "github.com/pmezard/go-difflib",
	},
	"the Image Factory requires that commit": {"github.com/jsimonetti/rtnetlink/v2", "github.com/Microsoft/go-winio"},
	"Talos requires that commit":             {"github.com/planetscale/vtprotobuf"},
	"go-git requires that commit":            {"github.com/go-git/gcfg"},
}

// TestNoReleaseCandidates: recast is made of releases. Nobody tests a candidate any more once its release is there.
func TestNoReleaseCandidates(t *testing.T) {
	t.Parallel()
	text := must.Get(os.ReadFile("../../go.mod"))(t)
	f := must.Get(modfile.Parse("go.mod", text, nil))(t)
	why := map[string]string{}
	for reason, paths := range commits {
		for _, path := range paths {
			why[path] = reason
		}
	}
	for _, r := range f.Require {
		reason, path := why[r.Mod.Path], r.Mod.Path
		if !gomod.IsPseudoVersion(r.Mod.Version) {
			must.Hold(t, versions.Prerelease(r.Mod.Version) == "", "%s is no release", r.Mod)
			continue
		}
		delete(why, path)
		switch base, err := gomod.PseudoVersionBase(r.Mod.Version); {
		case err != nil:
			t.Error(err)
		case reason == "":
			t.Errorf("%s is a commit: use a release, or say here why not", r.Mod)
		case reason == noRelease && base != "":
			t.Errorf("%s has a release, %s", r.Mod, base)
		}
	}
	for path := range why {
		t.Errorf("%s is a release by now, or no dependency: remove it here", path)
	}
}

const module = "github.com/recast-sh/recast"

// source is one Go file of the module that is not generated.
type source struct {
	pkg    string // directory, slash-separated, from the top
	name   string
	nested bool // it is of a nested module
	lines  int
	fset   *token.FileSet
	file   *ast.File
}

func (s source) test() bool { return strings.HasSuffix(s.name, "_test.go") }

func (s source) path() string { return path.Join(s.pkg, s.name) }

func (s source) line(p token.Pos) int { return s.fset.Position(p).Line }

// sources returns every file of the module at the top of the repository; with nested, also of nested modules.
func sources(t *testing.T, nested bool) []source {
	t.Helper()
	all := must.Get(parsed())(t)
	if !nested {
		all = slices.DeleteFunc(slices.Clone(all), func(s source) bool { return s.nested })
	}
	must.Be(t, len(all) >= 10, "found %d files: this is not the repository", len(all))
	return all
}

// parsed parses every file once for all tests, which only read them.
var parsed = sync.OnceValues(func() (all []source, err error) {
	top := os.DirFS("../..")
	var nested []string // directories of nested modules
	err = fs.WalkDir(top, ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir():
			if name != "." && skipped(name) {
				return fs.SkipDir
			}
			if _, err := fs.Stat(top, path.Join(name, "go.mod")); err == nil && name != "." {
				nested = append(nested, name+"/")
			}
			return nil
		case path.Ext(name) != ".go":
			return nil
		}
		text, err := fs.ReadFile(top, name)
		if err != nil {
			return err
		}
		s, err := parse(path.Dir(name), path.Base(name), text)
		if err == nil && !ast.IsGenerated(s.file) {
			s.nested = slices.ContainsFunc(nested, func(dir string) bool { return strings.HasPrefix(name, dir) })
			all = append(all, s)
		}
		return err
	})
	return all, err
})

func skipped(dir string) bool {
	base := path.Base(dir)
	return base == "testdata" || base == "bin" || base == "dist" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_")
}

func parse(pkg, name string, text []byte) (source, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path.Join(pkg, name), text, parser.ParseComments|parser.SkipObjectResolution)
	return source{pkg: pkg, name: name, lines: strings.Count(string(text), "\n"), fset: fset, file: f}, err
}
