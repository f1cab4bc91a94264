package talos

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/must"
)

type (
	upgradeStream = grpc.ServerStreamingServer[machineapi.LifecycleServiceUpgradeResponse]
	pullStream    = grpc.ServerStreamingServer[machineapi.ImageServicePullResponse]
)

// exits is an installer that prints lines, one every four minutes, and ends with code.
func exits(code int32, lines ...string) func(upgradeStream) error {
	return func(s upgradeStream) error {
		for _, line := range lines {
			time.Sleep(4 * time.Minute)
			if err := s.Send(&machineapi.LifecycleServiceUpgradeResponse{Progress: &machineapi.LifecycleServiceInstallProgress{
				Response: &machineapi.LifecycleServiceInstallProgress_Message{Message: line},
			}}); err != nil {
				return err
			}
		}
		return s.Send(&machineapi.LifecycleServiceUpgradeResponse{Progress: &machineapi.LifecycleServiceInstallProgress{
			Response: &machineapi.LifecycleServiceInstallProgress_ExitCode{ExitCode: code},
		}})
	}
}

// then answers with err after what install has sent.
func then(install func(upgradeStream) error, err error) func(upgradeStream) error {
	return func(s upgradeStream) error { return cmp.Or(install(s), err) }
}

func TestInstall(t *testing.T) {
	lines := []string{"one", "two\nthree\n", "\n", "four", "five", "six"}
	const tail = "it said: two; three; four; five; six"
	said := []string{"one", "two", "three", "four", "five", "six"}
	old := []string{"the machine pulls the installer, then installs it and reboots", "Upgrade request received"}
	const pulls, newAPI, oldAPI = "pull CRI/NS_SYSTEM installer", "upgrade CRI/NS_SYSTEM installer", "old upgrade installer"
	cut := status.Error(codes.Unavailable, "error reading from server: EOF")
	type row struct {
		node      *fakeNode
		said, did []string
		reboots   bool
		err       string
		lost      bool
	}
	must.Bubbles(t, map[string]row{
		"installed":                 {node: &fakeNode{version: "v1.13.9", install: exits(0, lines...)}, said: said, did: []string{pulls, newAPI}},
		"as of the third alpha":     {node: &fakeNode{version: "v1.13.0-alpha.3", install: exits(0)}, did: []string{pulls, newAPI}},
		"newer":                     {node: &fakeNode{version: "v1.20.0-beta.1", install: exits(0)}, did: []string{pulls, newAPI}},
		"cut after its end":         {node: &fakeNode{version: "v1.14.1", install: then(exits(0), cut)}, did: []string{pulls, newAPI}},
		"fails":                     {node: &fakeNode{version: "v1.13.9", install: exits(1, lines...)}, said: said, did: []string{pulls, newAPI}, err: "exit code 1; " + tail},
		"fails, cut after its end":  {node: &fakeNode{version: "v1.13.9", install: then(exits(2), cut)}, did: []string{pulls, newAPI}, err: "exit code 2"},
		"no such image":             {node: &fakeNode{version: "v1.13.9", answer: status.Error(codes.Internal, "upgrade failed: image not found")}, did: []string{pulls, newAPI}, err: "image not found"},
		"gone, and not pullable":    {node: &fakeNode{version: "v1.13.9", pull: func(pullStream) error { return status.Error(codes.NotFound, "manifest unknown") }}, did: []string{pulls}, err: "pull installer: manifest unknown"},
		"cut in the middle":         {node: &fakeNode{version: "v1.13.9", install: func(upgradeStream) error { return cut }}, did: []string{pulls, newAPI}, err: "EOF", lost: true},
		"broken in the middle":      {node: &fakeNode{version: "v1.13.9", answer: status.Error(codes.Internal, "stream terminated by RST_STREAM")}, did: []string{pulls, newAPI}, err: "RST_STREAM", lost: true},
		"ends without an exit code": {node: &fakeNode{version: "v1.13.9", install: func(upgradeStream) error { return nil }}, did: []string{pulls, newAPI}, err: "does not say how", lost: true},
		"old":                       {node: &fakeNode{version: "v1.12.4"}, said: old, did: []string{oldAPI}, reboots: true},
		"old, the second alpha":     {node: &fakeNode{version: "v1.13.0-alpha.2"}, said: old, did: []string{oldAPI}, reboots: true},
		"old, refused":              {node: &fakeNode{version: "v1.12.4", answer: status.Error(codes.Unknown, "validation failed")}, said: old[:1], did: []string{oldAPI}, reboots: true, err: "validation failed"},
		"old, cut":                  {node: &fakeNode{version: "v1.12.4", answer: cut}, said: old[:1], did: []string{oldAPI}, reboots: true, err: "EOF", lost: true},
		"version unknown":           {node: &fakeNode{version: "v2.0.0"}, err: `"v2.0.0"`},
		"version unreadable":        {node: &fakeNode{version: "main"}, err: `"main"`},
	}, func(t *testing.T, c row) {
		var said []string
		reboots, err := c.node.start(t).Install(t.Context(), cpAddr, cpUUID, "installer", "", func(s string) { said = append(said, s) })
		must.Equal(t, "said", c.said, said)
		must.Equal(t, "reboots", c.reboots, reboots)
		must.Equal(t, "done", c.did, c.node.done())
		must.Fail(t, err, c.err)
		must.Equal(t, "lost answer", c.lost, errors.Is(err, cluster.ErrLostAnswer))
	})
}

// An installer that keeps printing has all the time it needs; a silent one has not.
func TestInstallSilence(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		n := &fakeNode{version: "v1.13.9", install: func(s upgradeStream) error {
			defer func() { <-s.Context().Done() }()
			return s.Send(&machineapi.LifecycleServiceUpgradeResponse{Progress: &machineapi.LifecycleServiceInstallProgress{
				Response: &machineapi.LifecycleServiceInstallProgress_Message{Message: "partitioning"},
			}})
		}}
		c, start := n.start(t), time.Now()
		_, err := c.Install(t.Context(), cpAddr, cpUUID, "installer", "", func(string) {})
		must.Equal(t, "took", installSilence, time.Since(start))
		must.Fail(t, err, "silent for too long")
		must.FailIs(t, err, cluster.ErrLostAnswer)
	})
}

func layer(id string, status machineapi.ImageServicePullLayerProgress_Status, offset, total int64) *machineapi.ImageServicePullResponse {
	return &machineapi.ImageServicePullResponse{Response: &machineapi.ImageServicePullResponse_PullProgress{
		PullProgress: &machineapi.ImageServicePullProgress{LayerId: id, Progress: &machineapi.ImageServicePullLayerProgress{
			Status: status, Offset: offset << 20, Total: total << 20,
		}},
	}}
}

// pulls sends answers, one every four minutes.
func pulls(end error, answers ...*machineapi.ImageServicePullResponse) func(pullStream) error {
	return func(s pullStream) error {
		for _, a := range answers {
			time.Sleep(4 * time.Minute)
			if err := s.Send(a); err != nil {
				return err
			}
		}
		return end
	}
}

func TestPullInstaller(t *testing.T) {
	const (
		downloading = machineapi.ImageServicePullLayerProgress_DOWNLOADING
		complete    = machineapi.ImageServicePullLayerProgress_DOWNLOAD_COMPLETE
		extracting  = machineapi.ImageServicePullLayerProgress_EXTRACTING
		extracted   = machineapi.ImageServicePullLayerProgress_EXTRACT_COMPLETE
	)
	name := &machineapi.ImageServicePullResponse{Response: &machineapi.ImageServicePullResponse_Name{Name: "installer"}}
	type row struct {
		node        *fakeNode
		said        []string
		unsupported bool
		err         string
	}
	must.Bubbles(t, map[string]row{
		"pulled": {
			node: &fakeNode{version: "v1.13.9", pull: pulls(
				nil, layer("a", downloading, 0, 60), layer("b", downloading, 0, 40), layer("a", downloading, 31, 60), layer("a", downloading, 32, 60),
				layer("b", complete, 0, 40), layer("a", complete, 0, 60), name,
			)},
			said: []string{"pulled 31 of 100 MiB", "pulled 72 of 100 MiB", "pulled 100 of 100 MiB"},
		},
		"extracted": {
			node: &fakeNode{version: "v1.13.9", pull: pulls(
				nil, layer("a", downloading, 0, 60), layer("b", downloading, 0, 40), layer("a", complete, 0, 60), layer("a", extracting, 0, 0),
				layer("a", extracted, 0, 0), layer("b", downloading, 10, 40), layer("b", complete, 0, 40), layer("b", extracted, 0, 0), name,
			)},
			said: []string{"pulled 60 of 100 MiB", "pulled 70 of 100 MiB", "pulled 100 of 100 MiB"},
		},
		"there already": {node: &fakeNode{version: "v1.13.9", pull: pulls(nil, name)}},
		"old":           {node: &fakeNode{version: "v1.12.9"}, unsupported: true},
		"refused":       {node: &fakeNode{version: "v1.13.9", pull: pulls(status.Error(codes.NotFound, "manifest unknown"))}, err: "pull installer: manifest unknown"},
		"cut":           {node: &fakeNode{version: "v1.13.9", pull: pulls(status.Error(codes.Unavailable, "EOF"), layer("a", downloading, 0, 60))}, err: "EOF"},
		"no image":      {node: &fakeNode{version: "v1.13.9", pull: pulls(nil)}, err: "without an image"},
		"silent":        {node: &fakeNode{version: "v1.13.9", pull: func(s pullStream) error { <-s.Context().Done(); return nil }}, err: "silent for too long"},
	}, func(t *testing.T, c row) {
		var said []string
		supported, err := c.node.start(t).PullInstaller(t.Context(), cpAddr, cpUUID, "installer", func(s string) { said = append(said, s) })
		must.Equal(t, "said", c.said, said)
		must.Equal(t, "supported", !c.unsupported, supported)
		must.Fail(t, err, c.err)
		want := []string{"pull CRI/NS_SYSTEM installer"}
		must.Hold(t, c.unsupported || slices.Equal(c.node.done(), want), "done: %q", c.node.done())
	})
}

// Before 1.14 a pull is retried for twenty minutes, during which the machine is silent.
func TestPullPatience(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		for version, patience := range map[string]time.Duration{"v1.13.9": patientPullSilence, "v1.14.1": pullSilence} {
			n := &fakeNode{version: version, pull: func(s pullStream) error { <-s.Context().Done(); return nil }}
			c, start := n.start(t), time.Now()
			must.Hold(t, !(must.Err(c.PullInstaller(t.Context(), cpAddr, cpUUID, "installer", func(string) {})) == nil), "%s: no error", version)
			must.Take(t, start, patience, patience)
		}
	})
}

// The client waits, within the call's time, while another configuration is being applied.
func TestReplaceConfigWaits(t *testing.T) {
	busy := status.Error(codes.FailedPrecondition, "another apply configuration is already in progress")
	type row struct {
		until time.Duration
		asked int
		err   string
	}
	must.Bubbles(t, map[string]row{
		"for a moment": {3 * time.Second, 4, ""},
		"to the end":   {time.Hour, 15, "already in progress"},
	}, func(t *testing.T, c row) {
		n := &fakeNode{}
		client, start := n.start(t), time.Now()
		n.busy = func() error {
			if time.Since(start) < c.until {
				return busy
			}
			return nil
		}
		err := client.ReplaceConfig(t.Context(), cpAddr, cpUUID, cluster.Secret("a: b"))
		must.Fail(t, err, c.err)
		must.Equal(t, "asked", c.asked, len(n.done()))
	})
}

// A configuration that Talos quotes in a refusal is not shown.
func TestReplaceConfigHidesValues(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		const secret = "hunter-two-is-a-secret"
		n := &fakeNode{answer: status.Error(codes.InvalidArgument, fmt.Sprintf("unknown key %q", secret))}
		err := n.start(t).ReplaceConfig(t.Context(), cpAddr, cpUUID, cluster.Secret("machine: "+secret))
		must.Hold(t, err != nil && !strings.Contains(err.Error(), secret), "err = %v", err)
	})
}

func TestUnsupported(t *testing.T) {
	t.Parallel()
	const (
		unknown    = "this recast does not know Talos v1.15.0, neither its upgrades nor its machine configuration: use a recast that does, or another talos.version"
		kubernetes = ": bring Kubernetes to a version that both support first (recast upgrade-k8s), or go to another Talos (talos.version)"
	)
	cases := map[string]struct {
		from, to, kubelet string
		want              []string
	}{
		"the same":           {"v1.13.9", "v1.13.9", "v1.35.4", nil},
		"a patch":            {"v1.13.9", "v1.13.10", "v1.35.4", nil},
		"a patch back":       {"v1.13.9", "v1.13.8", "v1.35.4", nil},
		"a minor":            {"v1.13.9", "v1.14.1", "v1.35.4", nil},
		"two minors":         {"v1.12.6", "v1.14.1", "v1.35.4", nil},
		"of a prerelease":    {"v1.13.0-alpha.2", "v1.14.0-rc.0", "v1.35.4", nil},
		"a minor back":       {"v1.14.1", "v1.13.9", "v1.35.4", nil},
		"Kubernetes unknown": {"v1.13.9", "v1.14.1", "", nil},
		"back from unknown":  {"v1.15.0", "v1.14.1", "v1.35.4", nil}, // the table of 1.14 has it
		"two minors back": {"v1.14.1", "v1.12.6", "v1.35.4", []string{
			"Talos does not support v1.14.1 → v1.12.6 (host version 1.14.1 is too new to downgrade to Talos 1.12.6): it cannot be downgraded that far; set talos.version to a newer one",
		}},
		"too far": {"v1.9.5", "v1.12.6", "v1.30.0", []string{
			"it runs Talos v1.9.5, and recast rolls nodes of v1.12 and later: upgrade it with talosctl first",
			"Talos does not support v1.9.5 → v1.12.6 (host version 1.9.5 is too old to upgrade to Talos 1.12.6): upgrade all nodes to v1.11 first",
		}},
		"much too far": {"v1.0.0", "v1.14.1", "", []string{
			"it runs Talos v1.0.0, and recast rolls nodes of v1.12 and later: upgrade it with talosctl first",
			"Talos does not support v1.0.0 → v1.14.1 (host version 1.0.0 is too old to upgrade to Talos 1.14.1): upgrade all nodes to v1.4 first",
		}},
		"old":              {"v1.11.2", "v1.13.9", "v1.34.0", []string{"it runs Talos v1.11.2, and recast rolls nodes of v1.12 and later: upgrade it with talosctl first"}},
		"old, as wanted":   {"v1.11.2", "v1.11.2", "v1.34.0", []string{"it runs Talos v1.11.2, and recast rolls nodes of v1.12 and later: upgrade it with talosctl first"}},
		"newer than known": {"v1.14.1", "v1.15.0", "v1.35.4", []string{unknown}},
		"newer, the same":  {"v1.15.0", "v1.15.0", "v1.35.4", []string{unknown}},
		"no version":       {"latest", "v1.14.1", "", []string{`it runs Talos "latest", which is not a version that recast knows`}},
		"none wanted":      {"v1.14.1", "latest", "", []string{`Talos "latest" is not a version that recast knows`}},
		"Kubernetes too old": {"v1.13.9", "v1.14.1", "v1.31.7", []string{
			"Talos v1.14.1 does not support the Kubernetes that runs (version of Kubernetes 1.31.7 is too old to be used with Talos 1.14.1)" + kubernetes,
		}},
		"Kubernetes too new": {"v1.14.1", "v1.13.9", "v1.37.0", []string{
			"Talos v1.13.9 does not support the Kubernetes that runs (version of Kubernetes 1.37.0 is too new to be used with Talos 1.13.9)" + kubernetes,
		}},
		"Kubernetes of the same minor": {"v1.14.0", "v1.14.1", "v1.31.7", nil}, // it already runs this version
		"Kubernetes unreadable": {"v1.13.9", "v1.14.1", "new", []string{
			"Talos v1.14.1 does not support the Kubernetes that runs (Invalid character(s) found in major number \"0new\")" + kubernetes,
		}},
	}
	for name, c := range cases {
		must.Equal(t, name, c.want, new(Client).Unsupported(c.from, c.to, c.kubelet))
	}
}

func TestUnsupportedKubernetes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ talos, kubernetes, want string }{
		"supported":            {"v1.13.9", "v1.36.1", ""},
		"too new":              {"v1.13.9", "v1.37.0", "Talos v1.13.9 supports Kubernetes 1.31 to 1.36, not v1.37.0: roll to Talos v1.14 first (talos.version, recast lock, recast roll)"},
		"too old":              {"v1.13.9", "v1.30.4", "Talos v1.13.9 supports Kubernetes 1.31 to 1.36, not v1.30.4: roll to Talos v1.12 first (talos.version, recast lock, recast roll)"},
		"two away":             {"v1.12.6", "v1.37.0", "Talos v1.12.6 supports Kubernetes 1.30 to 1.35, not v1.37.0: v1.14 does; upgrade Talos step by step first (talos.version, recast roll)"},
		"no Talos supports it": {"v1.14.1", "v1.99.0", "Talos v1.14.1 supports Kubernetes 1.32 to 1.37, not v1.99.0, and this recast knows no Talos that does"},
		"newer Talos":          {"v1.15.0", "v1.36.1", "this recast does not know which Kubernetes Talos v1.15.0 supports: use a newer recast"},
		"no Talos":             {"latest", "v1.36.1", "this recast does not know which Kubernetes Talos latest supports: use a newer recast"},
		"no Kubernetes":        {"v1.14.1", "newest", `Kubernetes "newest" is not a version that recast knows`},
		"a prerelease":         {"v1.14.0-beta.1", "v1.37.0-rc.0", ""},
		"newest of all":        {"v1.14.1", "v1.37.9", ""},
		"oldest of them":       {"v1.14.1", "v1.32.0", ""},
	} {
		must.Equal(t, name, c.want, new(Client).UnsupportedKubernetes(c.talos, c.kubernetes))
	}
}
