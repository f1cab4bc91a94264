package imager

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestImagerGetsNoSecrets: the imager gets only the variables that docker and podman
// need, and those that its configuration names.
func TestImagerGetsNoSecrets(t *testing.T) {
	for _, name := range []string{"GITHUB_TOKEN", "PROXMOX_VE_API_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS"} {
		t.Setenv(name, "planted")
	}
	t.Setenv("DOCKER_HOST", "unix:///run/d.sock")
	t.Setenv("BUILD_CACHE", "/var/cache/mine")
	dir := t.TempDir()
	c := client(t, Options{Command: []string{"sh", "-c", "env >'{out}/env'"}, Env: []string{"BUILD_CACHE"}})
	p := must(c.program(dir, "", ""))(t)
	noError(t, c.run(t.Context(), p, nil, func(string) {}))
	got := read(t, filepath.Join(dir, "env"))
	if strings.Contains(got, "planted") || !strings.Contains(got, "DOCKER_HOST=unix:///run/d.sock\n") || !strings.Contains(got, "BUILD_CACHE=/var/cache/mine\n") {
		t.Errorf("it got\n%s", got)
	}
}
