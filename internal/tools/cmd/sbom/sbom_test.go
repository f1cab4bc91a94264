package main

import (
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/xeipuuv/gojsonschema"
)

// TestOwnBill makes a bill of this test binary and validates it against CycloneDX's schema.
func TestOwnBill(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "self.cdx.json")
	var stderr strings.Builder
	if code := run([]string{"-version", "v1.2.3", "-date", "2026-01-02T03:04:05Z", "-output", file, self}, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	requireSchema(t, text)

	var bom cdx.BOM
	if err := json.Unmarshal(text, &bom); err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]string{}
	for _, c := range *bom.Components {
		listed[c.Name] = c.Version
	}
	for _, m := range info.Deps {
		if listed[m.Path] != m.Version {
			t.Errorf("%s %s is listed as %q", m.Path, m.Version, listed[m.Path])
		}
	}
	if want := strings.TrimPrefix(strings.Fields(info.GoVersion)[0], "go"); listed["stdlib"] != want {
		t.Errorf("Go is listed as %q, not %q", listed["stdlib"], want)
	}
	if got := len(*bom.Components); got != len(info.Deps)+1 || len(*(*bom.Dependencies)[0].Dependencies) != got {
		t.Errorf("%d parts of %d modules and Go", got, len(info.Deps))
	}
}

// requireSchema validates a bill against the library's schema.
func requireSchema(t *testing.T, bill []byte) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go").Output()
	if err != nil {
		t.Fatal(err)
	}
	schemas := filepath.Join(strings.TrimSpace(string(out)), "schema")
	loader := gojsonschema.NewSchemaLoader()
	for _, name := range []string{"spdx.schema.json", "jsf-0.82.schemax.json"} {
		if err := loader.AddSchemas(gojsonschema.NewReferenceLoader("file://" + filepath.Join(schemas, name))); err != nil {
			t.Fatal(err)
		}
	}
	schema, err := loader.Compile(gojsonschema.NewReferenceLoader("file://" + filepath.Join(schemas, "bom-1.6.schema.json")))
	if err != nil {
		t.Fatal(err)
	}
	result, err := schema.Validate(gojsonschema.NewBytesLoader(bill))
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range result.Errors() {
		t.Errorf("not as CycloneDX's schema wants it: %s", problem)
	}
}

func TestPartOf(t *testing.T) {
	t.Parallel()
	const sum = "h1:ggIEqquTEYcatHhAeaibqnIcVmlfNkbCZ9h9yCUgCl8=" // of no real module
	cases := map[string]struct {
		module debug.Module
		purl   string
		hashes int
	}{
		"a module":                  {debug.Module{Path: "example.com/A/b", Version: "v1.0.0", Sum: sum}, "pkg:golang/example.com/A/b@v1.0.0", 1},
		"a plus sign":               {debug.Module{Path: "example.com/a", Version: "v2.0.0+incompatible", Sum: sum}, "pkg:golang/example.com/a@v2.0.0%2Bincompatible", 1},
		"another in its place":      {debug.Module{Path: "example.com/a", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/fork", Version: "v1.0.1", Sum: sum}}, "pkg:golang/example.com/fork@v1.0.1", 1},
		"a directory in its place":  {debug.Module{Path: "example.com/a", Version: "v1.0.0", Replace: &debug.Module{Path: "../a"}}, "pkg:golang/../a", 0},
		"a hash of another fashion": {debug.Module{Path: "example.com/a", Version: "v1.0.0", Sum: "h2:x"}, "pkg:golang/example.com/a@v1.0.0", 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := partOf(&c.module)
			if err != nil {
				t.Fatal(err)
			}
			hashes := 0
			if got.Hashes != nil {
				hashes = len(*got.Hashes)
			}
			if got.PackageURL != c.purl || hashes != c.hashes {
				t.Errorf("%s with %d hashes, want %s with %d", got.PackageURL, hashes, c.purl, c.hashes)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "out.json")
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no binary":            {[]string{"-output", file}, 3, "usage: sbom"},
		"nowhere to write to":  {[]string{"binary"}, 3, "usage: sbom"},
		"a binary of nobody's": {[]string{"-output", file, "main.go"}, 1, "sbom: could not read Go build info from main.go"},
		"none such":            {[]string{"-output", file, "none"}, 1, "none"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stderr strings.Builder
			if code := run(c.args, &stderr); code != c.code || !strings.Contains(stderr.String(), c.says) {
				t.Errorf("exit code %d, want %d with %q: %s", code, c.code, c.says, &stderr)
			}
			if _, err := os.Stat(file); err == nil {
				t.Error("a file was written")
			}
		})
	}
}
