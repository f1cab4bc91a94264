package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestChart packages a chart with a link. make e2e-helm has Helm read the real one.
func TestChart(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	for name, text := range map[string]string{
		"chart/Chart.yaml":       "name: chart\nversion: 0.0.0\nappVersion: latest\n",
		"chart/.helmignore":      "Kustomization\n",
		"chart/templates/a.yaml": "a\n",
		"crds/b.yaml":            "b\n",
		"crds/Kustomization":     "k\n",
	} {
		file := filepath.Join(top, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../crds", filepath.Join(top, "chart", "crds")); err != nil {
		t.Fatal(err)
	}
	var first []byte
	for range 2 {
		var said strings.Builder
		if code := run([]string{"-version", "v1.2.3", "-date", "2026-01-02T03:04:05Z", "-output", filepath.Join(top, "out"), filepath.Join(top, "chart")}, &said); code != 0 {
			t.Fatalf("exit code %d: %s", code, &said)
		}
		archive, err := os.ReadFile(filepath.Join(top, "out", "chart-1.2.3.tgz"))
		if err != nil {
			t.Fatal(err)
		}
		if first != nil && !bytes.Equal(first, archive) {
			t.Error("the archive differs the second time")
		}
		first = archive
	}
	want := map[string]string{
		"chart/Chart.yaml": "name: chart\nversion: 1.2.3\nappVersion: v1.2.3\n", "chart/crds/b.yaml": "b\n", "chart/templates/a.yaml": "a\n",
	}
	if got := unpack(t, first); !maps.Equal(got, want) {
		t.Errorf("it has %q, want %q", got, want)
	}
}

func unpack(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(text)
	}
}

func TestChartRefuses(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"no chart":     {"-version", "v1", "-date", "2026-01-02T03:04:05Z", "-output", "x"},
		"no v":         {"-version", "1", "-date", "2026-01-02T03:04:05Z", "-output", "x", "y"},
		"not a date":   {"-version", "v1", "-date", "today", "-output", "x", "y"},
		"unknown flag": {"-x", "y"},
	} {
		if code := run(args, io.Discard); code != 3 {
			t.Errorf("%s: exit code %d", name, code)
		}
	}
	if _, err := released([]byte("version: 1\n"), "v2"); err == nil || !strings.Contains(err.Error(), "appVersion") {
		t.Errorf("a chart without appVersion: %v", err)
	}
}
