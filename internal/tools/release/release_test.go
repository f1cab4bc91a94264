// Package release checks the artefacts of a release, which make release-snapshot leaves in dist. It is a module of its
// own, because goreleaser needs other dependencies than recast's other tools.
package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"debug/macho"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var dist = flag.String("dist", "", "where goreleaser has left a release")

// platforms are those that recast is released for.
var platforms = []string{"darwin_amd64", "darwin_arm64", "linux_amd64", "linux_arm64"}

// operatorPlatforms are those of the operator, which is only in the image.
var operatorPlatforms = []string{"linux_amd64", "linux_arm64"}

// archive is one archive of the release and its content.
type archive struct {
	platform string
	members  map[string]member
}

type member struct {
	header *tar.Header
	bytes  []byte
}

// opened caches the archives: they are large, and the tests that read them run sequentially.
var opened []archive

// released opens the archives of the release.
func released(t *testing.T) []archive {
	t.Helper()
	if *dist == "" {
		t.Skip("no -dist: make release-snapshot makes one")
	}
	if opened != nil {
		return opened
	}
	files := must(filepath.Glob(filepath.Join(*dist, "*.tar.gz")))(t)
	name := regexp.MustCompile(`^recast_\d+\.\d+\.\d+(?:-\w+)?_(\w+_\w+)\.tar\.gz$`)
	var all []archive
	var found []string
	for _, file := range files {
		parts := name.FindStringSubmatch(filepath.Base(file))
		if parts == nil {
			t.Fatalf("%s is not the name of an archive", file)
		}
		found = append(found, parts[1])
		all = append(all, archive{parts[1], unpack(t, file)})
	}
	if !slices.Equal(found, platforms) {
		t.Fatalf("archives for %q, want %q", found, platforms)
	}
	opened = all
	return opened
}

func unpack(t *testing.T, file string) map[string]member {
	t.Helper()
	b := must(os.ReadFile(file))(t)
	z := must(gzip.NewReader(bytes.NewReader(b)))(t)
	members := map[string]member{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return members
		}
		mustDo(t, err)
		text := must(io.ReadAll(r))(t)
		members[h.Name] = member{h, text}
	}
}

// TestArchives checks each archive: a stripped binary of its platform, and the files that packagers need.
func TestArchives(t *testing.T) {
	for _, a := range released(t) {
		t.Run(a.platform, func(t *testing.T) {
			for _, want := range []string{
				"LICENSE", "README.md", "examples/recast.yaml", "docs/recast.schema.json",
				"completions/recast.bash", "completions/recast.zsh", "completions/recast.fish",
				"man/man1/recast.1.gz", "man/man1/recast-roll.1.gz", "man/man1/recast-lab-up.1.gz",
			} {
				if m, ok := a.members[want]; !ok || len(m.bytes) == 0 {
					t.Errorf("%s is not in it", want)
				}
			}
			bin := a.members["recast"]
			if bin.header == nil || bin.header.Mode != 0o755 {
				t.Fatalf("no program recast of mode 0755: %+v", bin.header)
			}
			if _, ok := a.members["recast-operator"]; ok {
				t.Error("the operator is in it")
			}
			for name, m := range a.members {
				if !m.header.ModTime.Equal(bin.header.ModTime) || m.header.Uname != "root" {
					t.Errorf("%s is of %s, %s, and the program of %s, root", name, m.header.ModTime, m.header.Uname, bin.header.ModTime)
				}
			}
			requireBuilt(t, a.platform, bin.bytes)
		})
	}
	t.Attr("archives", strconv.Itoa(len(platforms)))
}

// operator is the operator's binary for a platform.
func operator(t *testing.T, platform string) (file string, bin []byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(*dist, "recast-operator_"+platform+"_*", "recast-operator"))
	if err != nil || len(files) != 1 {
		t.Fatalf("operators of %s: %q, %v", platform, files, err)
	}
	if bin, err = os.ReadFile(files[0]); err != nil {
		t.Fatal(err)
	}
	return files[0], bin
}

func TestOperators(t *testing.T) {
	released(t)
	for _, platform := range operatorPlatforms {
		_, bin := operator(t, platform)
		requireBuilt(t, platform, bin)
	}
}

// chartFile is the Helm chart of the release, which goreleaser publishes from there.
func chartFile(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(*dist, "..", "bin", "release", "recast-operator-*.tgz"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no chart: %v", err)
	}
	return slices.MaxFunc(files, func(a, b string) int { return modified(t, a).Compare(modified(t, b)) })
}

func modified(t *testing.T, file string) time.Time {
	t.Helper()
	info := must(os.Stat(file))(t)
	return info.ModTime()
}

// TestChart: the chart installs the image of the same version. make e2e-helm renders it.
func TestChart(t *testing.T) {
	all := released(t)
	file := chartFile(t)
	version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "recast-operator-"), ".tgz")
	members := unpack(t, file)
	about := string(members["recast-operator/Chart.yaml"].bytes)
	for _, want := range []string{"\nversion: " + version + "\n", "\nappVersion: v" + version + "\n"} {
		if !strings.Contains(about, want) {
			t.Errorf("no line %q in:\n%s", want, about)
		}
	}
	out, err := exec.CommandContext(t.Context(), native(t), "version").Output()
	if err != nil || !strings.HasPrefix(string(out), "recast v"+version+" ") {
		t.Errorf("the chart is of %s, recast says %s, %v", version, out, err)
	}
	if m := members["recast-operator/crds/recast.dev_talosclusters.yaml"]; len(m.bytes) == 0 || !m.header.ModTime.Equal(all[0].members["recast"].header.ModTime) {
		t.Errorf("its CRDs: %+v", m.header)
	}
}

// requireBuilt checks the build settings of a binary.
func requireBuilt(t *testing.T, platform string, bin []byte) {
	t.Helper()
	goos, goarch, _ := strings.Cut(platform, "_")
	info := infoOf(t, bin)
	for key, want := range map[string]string{"GOOS": goos, "GOARCH": goarch, "CGO_ENABLED": "0", "-trimpath": "true"} {
		if got := setting(info, key); got != want {
			t.Errorf("built with %s=%s, want %s", key, got, want)
		}
	}
	if goos == "darwin" {
		f := must(macho.NewFile(bytes.NewReader(bin)))(t)
		if f.Section("__debug_info") != nil || f.Section("__zdebug_info") != nil {
			t.Error("it has debugging information")
		}
		return
	}
	f := must(elf.NewFile(bytes.NewReader(bin)))(t)
	if f.Section(".symtab") != nil || f.Section(".debug_info") != nil {
		t.Error("it is not stripped")
	}
	if f.Section(".interp") != nil {
		t.Error("it is linked against libraries of the system")
	}
}

func infoOf(t *testing.T, bin []byte) *debug.BuildInfo {
	t.Helper()
	return must(buildinfo.Read(bytes.NewReader(bin)))(t)
}

func setting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// TestBinaryRuns checks the version that this machine's binary prints, and the commit that is checked out.
func TestBinaryRuns(t *testing.T) {
	out := must(exec.CommandContext(t.Context(), native(t), "version").Output())(t)
	built := regexp.MustCompile(`^recast v\d+\.\d+\.\d+(?:-\w+)? \(commit ([0-9a-f]{40}), (\S+), go1\.\S+, ` + runtime.GOOS + "/" + runtime.GOARCH + `\)\n$`).FindSubmatch(out)
	if built == nil {
		t.Fatalf("recast version: %s", out)
	}
	head, err := exec.CommandContext(t.Context(), "git", "rev-parse", "HEAD").Output()
	if err != nil || strings.TrimSpace(string(head)) != string(built[1]) {
		t.Errorf("it says commit %s, and %s is checked out: %v", built[1], head, err)
	}
	if date, err := time.Parse(time.RFC3339, string(built[2])); err != nil || date.Year() < 2026 {
		t.Errorf("it says %s: %v", built[2], err)
	}
}

// native is this machine's binary, extracted from its archive.
func native(t *testing.T) string {
	t.Helper()
	for _, a := range released(t) {
		if a.platform == runtime.GOOS+"_"+runtime.GOARCH {
			file := filepath.Join(t.TempDir(), "recast")
			mustDo(t, os.WriteFile(file, a.members["recast"].bytes, 0o755))
			return file
		}
	}
	t.Skipf("nothing is released for %s/%s", runtime.GOOS, runtime.GOARCH)
	return ""
}

// TestManPages formats every page with man, if it is installed.
func TestManPages(t *testing.T) {
	pages := map[string]member{}
	for name, m := range released(t)[0].members {
		if strings.HasPrefix(name, "man/") {
			pages[name] = m
		}
	}
	man, err := exec.LookPath("man")
	if err != nil {
		t.Skip("there is no man")
	}
	for name, m := range pages {
		file := filepath.Join(t.TempDir(), filepath.Base(name))
		mustDo(t, os.WriteFile(file, m.bytes, 0o600))
		c := exec.CommandContext(t.Context(), man, "--warnings", "--local-file", file)
		c.Env = append(os.Environ(), "MANWIDTH=100", "LC_ALL=C.UTF-8")
		var stderr strings.Builder
		c.Stderr = &stderr
		text, err := c.Output()
		if title := strings.TrimSuffix(filepath.Base(name), ".1.gz"); err != nil || stderr.Len() > 0 || !strings.Contains(string(text), title) {
			t.Errorf("man %s: %v\n%s", name, err, &stderr)
		}
	}
}

// TestChecksums verifies the checksum of every file.
func TestChecksums(t *testing.T) {
	released(t)
	text := must(os.ReadFile(filepath.Join(*dist, "checksums.txt")))(t)
	summed := map[string]int{}
	for line := range strings.Lines(string(text)) {
		want, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok {
			t.Fatalf("checksums.txt: %q", line)
		}
		file := filepath.Join(*dist, name)
		if strings.HasSuffix(name, ".tgz") {
			file = chartFile(t)
		}
		b := must(os.ReadFile(file))(t)
		if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != want {
			t.Errorf("%s is not what checksums.txt says", name)
		}
		_, suffix, _ := strings.Cut(name, "64.")
		summed[suffix]++ // that of the chart is ""
	}
	if want := len(platforms); summed["tar.gz"] != want || summed["cdx.json"] != want+len(operatorPlatforms) || summed[""] != 1 {
		t.Errorf("checksums.txt has %v, want %d archives, a bill of materials of each and of %d operators, and the chart", summed, want, len(operatorPlatforms))
	}
}

// TestBills compares each bill of materials with its binary.
func TestBills(t *testing.T) {
	for _, a := range released(t) {
		requireBill(t, "recast", a.platform, a.members["recast"].bytes)
	}
	for _, platform := range operatorPlatforms {
		_, bin := operator(t, platform)
		requireBill(t, "recast-operator", platform, bin)
	}
}

func requireBill(t *testing.T, name, platform string, bin []byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(*dist, name+"_*_"+platform+".cdx.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("bills of %s for %s: %q, %v", name, platform, files, err)
	}
	text := must(os.ReadFile(files[0]))(t)
	var bill struct {
		Metadata struct {
			Component struct{ Hashes []struct{ Content string } }
		}
		Components []struct{ Name string }
	}
	mustDo(t, json.Unmarshal(text, &bill))
	sum := sha256.Sum256(bin)
	if bill.Metadata.Component.Hashes[0].Content != hex.EncodeToString(sum[:]) {
		t.Errorf("%s for %s: the bill is of another binary", name, platform)
	}
	if got, want := len(bill.Components), len(infoOf(t, bin).Deps)+1; got != want {
		t.Errorf("%s for %s: the bill lists %d components, the binary is made of %d", name, platform, got, want)
	}
}

// must is the value of a call, whose error ends the test: must(os.ReadFile(name))(t).
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		mustDo(t, err)
		return v
	}
}

func mustDo(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
