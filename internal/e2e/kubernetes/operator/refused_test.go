package operator

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	mustDo(t, os.WriteFile(name, []byte(text), 0o600))
}

// invalidSpecs are refused by the API server, with the field and the remedy, or by the operator in a condition.
func (h house) invalidSpecs() {
	t := h.t
	for name, c := range map[string]struct{ line, says string }{
		"two-sources":   {"source: {configMap: {name: a}, git: {url: 'https://example.com/a'}}", "give exactly one of configMap, git and oci"},
		"no-source":     {"source: {}", "give exactly one of configMap, git and oci"},
		"version":       {"talosVersion: latest", "spec.talosVersion"},
		"version-alone": {"talosVersion: v1.13.9", "talosVersion: needs lock: Update"},
		"duration":      {"windows: [{schedule: '0 22 * * 6', duration: 1s}]", "duration: between 1m and 168h"},
		"outside":       {"secrets: {proxmoxToken: {name: a}, talosconfig: {name: a}, kubeconfig: {name: a}, files: [{name: a, key: b, path: ../c}]}", "path: is relative to recast.yaml"},
	} {
		lines := []string{c.line}
		if name == "version-alone" {
			lines = append(lines, "lock: Source")
		}
		out, err := h.try(h.cluster(name, lines...), "apply --server-side -f -")
		if err == nil || !strings.Contains(out, c.says) {
			t.Errorf("%s: %v\n%s", c.line, err, out)
		}
	}
	h.apply(h.cluster("schedule", "drift: {schedule: every day}"))
	h.until("the operator says which field is invalid", func() bool {
		return strings.HasPrefix(h.ready("taloscluster/schedule"), "False InvalidSpec spec.drift.schedule:")
	})
	h.kubectl("wait --for=condition=Stalled taloscluster/schedule --timeout=1m")
	h.apply(h.cluster("no-files"))
	h.until("the operator misses the ConfigMap", func() bool {
		return strings.HasPrefix(h.ready("taloscluster/no-files"), "False SourceUnavailable spec.source.configMap.name:")
	})
	if jobs := h.kubectl("get jobs -o name"); jobs != "" && jobs != "No resources found in invalid namespace." {
		t.Errorf("Jobs were begun: %s", jobs)
	}
}

// secrets are missing, then a token without privileges is there, then the right one.
func (h house) secrets() {
	t := h.t
	l := h.startLab()
	h.apply(configMapWithLock(t, l, "prod"))
	h.apply(h.cluster("prod", "lock: Source"))
	h.until("it is stalled for want of the Secret", func() bool {
		return strings.HasPrefix(h.ready("taloscluster/prod"), "False Configuration spec.secrets.proxmoxToken: the Secret prod has no key token")
	})
	h.typed("kubectl wait --for=condition=Stalled taloscluster/prod --timeout=10m")
	h.apply(secret(t, l, "prod", l.variable("POOR_TOKEN")))
	h.typed("kubectl annotate taloscluster prod recast.dev/check-requested=again --overwrite")
	h.until("doctor says which privileges are missing", func() bool {
		text := h.ready("taloscluster/prod")
		return strings.HasPrefix(text, "False ") && strings.Contains(text, "doctor: ") && strings.Contains(text, "on /vms: missing")
	})
	fmt.Fprintf(t.Output(), "%s\n", h.ready("taloscluster/prod"))
	h.apply(secret(t, l, "prod", l.variable("PROXMOX_VE_API_TOKEN")))
	h.kubectl("annotate taloscluster prod recast.dev/check-requested=once-more --overwrite")
	h.kubectl("wait --for=condition=Ready taloscluster/prod --timeout=10m")
	h.until("the old reasons are gone", func() bool { return h.field("taloscluster/prod", "{.status.check.problems}") == "" })
	h.typed("kubectl delete taloscluster prod")
	if out, code := l.run(t, "drift"); code != 0 {
		t.Errorf("recast drift after the TalosCluster was deleted: %d\n%s", code, out)
	}
}

func configMapWithLock(t *testing.T, l lab, name string) string {
	t.Helper()
	return strings.Replace(files(t, l, name), "data:\n", "data:\n  recast.lock: |\n    "+strings.ReplaceAll(strings.TrimSpace(l.file(t, "recast.lock")), "\n", "\n    ")+"\n", 1)
}

// window: a roll waits for its window, and goes on after that has closed.
func (h house) window() {
	t := h.t
	l := h.startLab("--talos-version", "v1.13.8", "--speed", "3")
	h.apply(secret(t, l, "prod", l.variable("PROXMOX_VE_API_TOKEN")))
	h.apply(files(t, l, "prod", "version: v1.13.8", "version: v1.13.9"))
	closed := time.Now().UTC().Add(-2 * time.Hour)
	window := func(at time.Time) string {
		return fmt.Sprintf("windows: [{schedule: '%d %d * * *', duration: 1m}]", at.Minute(), at.Hour())
	}
	h.apply(h.cluster("prod", "lock: Update", "rolls: {approval: Automatic}", window(closed)))
	h.kubectl("wait --for=create imageroll/prod-1 --timeout=10m")
	h.kubectl("wait --for=jsonpath='{.status.phase}'=AwaitingWindow imageroll/prod-1 --timeout=10m")
	time.Sleep(5 * time.Second)
	if h.runs(h.namespace, "prod-1-roll-") || h.field("imageroll/prod-1", "{.status.started}") != "" {
		t.Errorf("it was begun outside of its window")
	}
	opens := time.Now().UTC().Add(time.Minute)
	h.apply(h.cluster("prod", "lock: Update", "rolls: {approval: Automatic}", window(opens)))
	h.until("it begins", func() bool { return h.field("imageroll/prod-1", "{.status.started}") != "" })
	began, err := time.Parse(time.RFC3339, h.field("imageroll/prod-1", "{.status.started}"))
	if err != nil || began.Minute() != opens.Minute() {
		t.Errorf("it began at %v, the window was open in the minute of %v: %v", began, opens, err)
	}
	h.kubectl("wait --for=condition=Ready imageroll/prod-1 --timeout=20m")
	ended, err := time.Parse(time.RFC3339, h.field("imageroll/prod-1", "{.status.ended}"))
	if err != nil || ended.Before(opens.Truncate(time.Minute).Add(time.Minute)) {
		t.Errorf("it ended at %v, before the window of %v had closed: %v", ended, opens, err)
	}
	l.inSync(t, "v1.13.9")
}
