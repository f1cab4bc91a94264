package command_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/command"
)

func TestEnviron(t *testing.T) {
	t.Parallel()
	env := []string{
		"PATH=/bin", "HOME=/root", "LC_ALL=C", "XDG_RUNTIME_DIR=/run/user/0", "RECAST_NODE=wk1", "KUBECONFIG=k", "https_proxy=http://p",
		"PROXMOX_VE_API_TOKEN=u@pve!t=s", "GITHUB_TOKEN=g", "SLACK_WEBHOOK_URL=https://h", "OTEL_EXPORTER_OTLP_HEADERS=a=b", "DOCKER_HOST=tcp://d", "DOCKER_AUTH_CONFIG={}", "PATHS=x", "BARE",
	}
	want := env[:7]
	if got := command.Environ(env, nil); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	want = append(slices.Clone(want), "SLACK_WEBHOOK_URL=https://h", "DOCKER_HOST=tcp://d", "DOCKER_AUTH_CONFIG={}")
	if got := command.Environ(env, []string{"SLACK_WEBHOOK_URL", "DOCKER_*", "PROXMOX_VE_API_TOKEN", "UNSET"}); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestProgramsGetNoSecrets: gates and hooks see no secrets of recast except those that
// they name.
func TestProgramsGetNoSecrets(t *testing.T) {
	t.Parallel()
	gates := command.Gates{Env: []string{
		"PATH=" + os.Getenv("PATH"), "PROXMOX_VE_API_TOKEN=planted", "GITHUB_TOKEN=planted", "SLACK_WEBHOOK_URL=planted", "OTEL_EXPORTER_OTLP_HEADERS=planted", "LB_PASSWORD=mine",
	}}
	program := shell("env; echo LB:${LB_PASSWORD-none}")
	if _, err := gates.RunHook(t.Context(), program, []string{"RECAST_HOOK=beforeNode"}, func(line string) {
		if strings.Contains(line, "planted") || line == "LB:mine" {
			t.Errorf("a hook prints %q", line)
		}
	}); err != nil {
		t.Error(err)
	}
	if _, said, err := gates.RunGate(t.Context(), program, nil); err != nil || strings.Contains(said, "planted") || !strings.Contains(said, "LB:none") {
		t.Errorf("a gate said %q, %v", said, err)
	}
	program.Env = []string{"LB_PASSWORD"}
	if _, said, err := gates.RunGate(t.Context(), program, nil); err != nil || strings.Contains(said, "planted") || !strings.Contains(said, "LB:mine") {
		t.Errorf("a gate that names it said %q, %v", said, err)
	}
}
