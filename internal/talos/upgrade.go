package talos

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/siderolabs/go-kubernetes/kubernetes/upgrade"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/compatibility"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
	"golang.org/x/mod/semver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
)

// How long a machine may be silent while it pulls and installs an image.
const (
	pullSilence    = 5 * time.Minute
	installSilence = 5 * time.Minute
	// Before 1.14 Talos retries a pull for 20 minutes, and only the end of the pull says why it failed (PullTimeout
	// in internal/pkg/containers/image/image.go). The oldest API answers once, after the retries.
	patientPullSilence = 25 * time.Minute
	oldInstallTimeout  = 25 * time.Minute
	rebootTimeout      = 30 * time.Second
)

// containerd is the store into which talosctl pulls installers and from which it runs them: the store on EPHEMERAL,
// not the store in memory (cmd/talosctl/cmd/talos/image.go, containerdInstance).
func containerd() *common.ContainerdInstance {
	return &common.ContainerdInstance{Driver: common.ContainerDriver_CRI, Namespace: common.ContainerdNamespace_NS_SYSTEM}
}

// PullInstaller makes the machine fetch the installer. An interrupted pull may be repeated.
func (c *Client) PullInstaller(
	ctx context.Context, addr netip.Addr, uuid, installer string, say func(string),
) (supported bool, err error) {
	err = c.upgrading(ctx, addr, uuid, "nothing was pulled", func(ctx context.Context, s session, silence time.Duration, wait patience) error {
		if supported = silence > 0; !supported {
			return nil
		}
		return pull(ctx, s, containerd(), installer, silence, wait, say)
	})
	return supported, err
}

func pull(ctx context.Context, s session, to *common.ContainerdInstance, image string, silence time.Duration, wait patience, say func(string)) error {
	wait(silence)
	p, named := &pullProgress{say: say, layers: map[string]pulledLayer{}}, false
	for m, err := range received(s.ImageClient.Pull(ctx, &machineapi.ImageServicePullRequest{Containerd: to, ImageRef: image})) {
		if err != nil {
			return fmt.Errorf("pull %s: %w", image, answer(err))
		}
		wait(silence)
		named = named || m.GetName() != "" // the last message has the image's name on the machine
		p.add(m.GetPullProgress())
	}
	if !named {
		return fmt.Errorf("pull %s: %w", image, answer(errors.New("the machine ended the pull without an image")))
	}
	return nil
}

// Install writes the installer's system beside the running system. The machine fetches the installer again if it no
// longer has the installer: Talos removes unreferenced images after an hour (controllers/cri/image_gc.go), and a
// drain may take longer. The error wraps cluster.ErrLostAnswer if the outcome is unknown, and cluster.ErrBusy if
// another installer is running.
func (c *Client) Install(ctx context.Context, addr netip.Addr, uuid, installer string, how cluster.Reboot, say func(string)) (reboots bool, err error) {
	err = c.upgrading(ctx, addr, uuid, "nothing was installed", func(ctx context.Context, s session, silence time.Duration, wait patience) error {
		if reboots = silence == 0; reboots {
			wait(oldInstallTimeout)
			return oldInstall(ctx, s, installer, how, say)
		}
		if err := pull(ctx, s, containerd(), installer, silence, wait, say); err != nil {
			return err
		}
		wait(installSilence)
		stream, err := s.LifecycleClient.Upgrade(ctx, &machineapi.LifecycleServiceUpgradeRequest{
			Containerd: containerd(), Source: &machineapi.InstallArtifactsSource{ImageName: installer},
		})
		if err != nil {
			return changed(err)
		}
		return installed(stream, wait, say)
	})
	// One installer at a time (internal/app/lifecycle/lifecycle.go, Upgrade).
	if e, ok := errors.AsType[*answerError](err); ok && e.code == codes.FailedPrecondition && strings.Contains(e.text, "already in progress") {
		err = fmt.Errorf("%w: %w", cluster.ErrBusy, err)
	}
	return reboots, err
}

func installed(stream grpc.ServerStreamingClient[machineapi.LifecycleServiceUpgradeResponse], wait patience, say func(string)) error {
	var last lastLines
	ended, code := false, int32(0)
	for {
		m, err := stream.Recv()
		switch {
		case err == nil:
		case ended && code == 0:
			return nil // whatever follows its exit code
		case ended:
			return fmt.Errorf("the installer ended with exit code %d%s", code, last)
		case errors.Is(err, io.EOF):
			return fmt.Errorf("%w: the machine does not say how the installer ended%s", cluster.ErrLostAnswer, last)
		default:
			return failedInstall(err, last)
		}
		wait(installSilence)
		switch r := m.GetProgress().GetResponse().(type) {
		case *machineapi.LifecycleServiceInstallProgress_Message:
			for line := range strings.Lines(r.Message) {
				if line = strings.TrimSpace(foreign.Line(line)); line != "" {
					say(line)
					last.add(line)
				}
			}
		case *machineapi.LifecycleServiceInstallProgress_ExitCode:
			ended, code = true, r.ExitCode
		}
	}
}

// failedInstall distinguishes the code Internal of the service, which is an answer, from the code Internal of a
// broken transport (internal/app/lifecycle/lifecycle.go, Upgrade).
func failedInstall(err error, last lastLines) error {
	err = answer(err)
	e, ok := errors.AsType[*answerError](err)
	if ok && e.code == codes.Internal && strings.HasPrefix(e.text, "upgrade failed: ") {
		return fmt.Errorf("%w%s", err, last)
	}
	return changed(err)
}

// oldInstall uses the only API before 1.13. That API answers when Talos has pulled the installer, and installs
// afterwards. preserve, the default since 1.8, keeps EPHEMERAL. On a control plane, Talos 1.12 locks a mutex in etcd
// and refuses unless every member is up and there are not exactly two, whatever preserve says; only force would skip
// that check (v1alpha1_server.go, Upgrade). Talos acknowledges and drops an upgrade during another one: only the
// system that boots then shows it.
func oldInstall(ctx context.Context, s session, installer string, how cluster.Reboot, say func(string)) error {
	say("the machine pulls the installer, then installs it and reboots")
	request := &machineapi.UpgradeRequest{Image: installer, Preserve: true}
	if how == cluster.ByFirmware {
		request.RebootMode = machineapi.UpgradeRequest_POWERCYCLE
	}
	//lint:ignore SA1019 there is no other before 1.13
	answers, err := s.MachineClient.Upgrade(ctx, request)
	answers, err = client.FilterMessages(answers, err)
	if err != nil {
		return changed(err)
	}
	one, err := single("upgrade", answers, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", cluster.ErrLostAnswer, err)
	}
	if ack := one.GetAck(); ack != "" {
		say(ack)
	}
	return nil
}

// Reboot restarts the machine. It returns when the machine has accepted the request. Talos' own mode is kexec if the
// kernel can do it; POWERCYCLE skips kexec (v1alpha1_sequencer.go, Reboot).
func (c *Client) Reboot(ctx context.Context, addr netip.Addr, uuid string, how cluster.Reboot) error {
	var mode []client.RebootMode
	if how == cluster.ByFirmware {
		mode = append(mode, client.WithPowerCycle)
	}
	return c.change(ctx, addr, uuid, rebootTimeout, func(ctx context.Context, s session) error {
		return s.Client.Reboot(ctx, mode...)
	})
}

// Rollback makes the other boot entry the default and reboots.
func (c *Client) Rollback(ctx context.Context, addr netip.Addr, uuid string) error {
	return c.change(ctx, addr, uuid, rebootTimeout, func(ctx context.Context, s session) error {
		return s.Client.Rollback(ctx)
	})
}

// RestartKubelet implements cluster.KubeletRestarter. Talos lets the API restart the kubelet, among a cluster's
// services (APIRestartAllowed in internal/app/machined/pkg/system/services/kubelet.go).
func (c *Client) RestartKubelet(ctx context.Context, addr netip.Addr, uuid string) error {
	return c.change(ctx, addr, uuid, rebootTimeout, func(ctx context.Context, s session) error {
		_, err := s.Client.ServiceRestart(ctx, "kubelet")
		return err
	})
}

// upgrading calls do with how long the machine may be silent while it pulls: see lifecycleAPI.
func (c *Client) upgrading(
	ctx context.Context, addr netip.Addr, uuid, untouched string, do func(context.Context, session, time.Duration, patience) error,
) error {
	return c.patiently(ctx, addr, uuid, untouched, func(ctx context.Context, s session, wait patience) error {
		silence, err := lifecycleAPI(ctx, s)
		if err != nil {
			return err
		}
		return do(ctx, s, silence, wait)
	})
}

// lifecycleAPI returns how long the machine may be silent while it pulls an image for its lifecycle API; 0 if the
// machine has no lifecycle API. As for talosctl, the version decides: the API exists since 1.13.0-alpha.3
// (cmd/talosctl/cmd/talos/upgrade.go).
func lifecycleAPI(ctx context.Context, s session) (pull time.Duration, err error) {
	var m cluster.Machine
	if err := readVersion(ctx, s, &m); err != nil {
		return 0, err
	}
	v, err := config.ParseContractFromVersion(m.TalosVersion)
	if err != nil || v.Major != 1 {
		return 0, fault.Refusedf("recast does not know how Talos %q is upgraded", m.TalosVersion)
	}
	switch strings.TrimPrefix(m.TalosVersion, "v") {
	case "1.13.0-alpha.0", "1.13.0-alpha.1", "1.13.0-alpha.2":
		return 0, nil
	}
	switch {
	case v.Minor < 13:
		return 0, nil
	case v.Minor == 13:
		return patientPullSilence, nil
	}
	return pullSilence, nil
}

// pullProgress reduces the many reports that a machine sends for each layer to a few lines.
type pullProgress struct {
	say    func(string)
	layers map[string]pulledLayer
	said   int64 // tenths of the whole pull
}

// pulledLayer is the progress of a layer in bytes; total is the largest reported total.
type pulledLayer struct{ done, total int64 }

// add reports the progress whenever another tenth is done.
func (p *pullProgress) add(m *machineapi.ImageServicePullProgress) {
	if m.GetProgress() == nil {
		return
	}
	// During and after the extraction of a layer, the machine reports no total for it.
	layer := p.layers[m.GetLayerId()]
	layer.total = max(layer.total, m.GetProgress().GetTotal())
	layer.done = layer.total
	if m.GetProgress().GetStatus() == machineapi.ImageServicePullLayerProgress_DOWNLOADING {
		layer.done = min(m.GetProgress().GetOffset(), layer.total)
	}
	p.layers[m.GetLayerId()] = layer
	var done, total int64
	for _, l := range p.layers {
		done, total = done+l.done, total+l.total
	}
	if total <= 0 || done*10/total <= p.said {
		return
	}
	p.said = done * 10 / total
	unit, shift := "MiB", 20
	if total < 1<<20 {
		unit, shift = "KiB", 10
	}
	p.say(fmt.Sprintf("pulled %d of %d %s", done>>shift, total>>shift, unit))
}

// lastLines are the last lines of an installer, which say why it failed.
type lastLines []string

func (l *lastLines) add(line string) {
	const keep = 5
	*l = append(*l, line)
	*l = slices.Clone((*l)[max(0, len(*l)-keep):])
}

func (l lastLines) String() string {
	if len(l) == 0 {
		return ""
	}
	return "; it said: " + strings.Join(l, "; ")
}

// oldest is the first release whose nodes recast rolls. Earlier releases do not report which boot entry they run
// (CHANGELOG.md of Talos, 1.12.0-alpha.0), so recast cannot verify that they booted the installed system.
var oldest = config.TalosVersion1_12

// Unsupported implements cluster.Compatibility with Talos' own tables. In Talos only an installer checks the tables
// (cmd/installer/pkg/install/preflight.go). Nothing checks them when a machine is recreated, and nothing checks the
// tables for Kubernetes.
func (*Client) Unsupported(from, to, kubelet string) []string {
	host, target := version(from), version(to)
	old, errOld := config.ParseContractFromVersion(from)
	wanted, errWanted := config.ParseContractFromVersion(to)
	switch {
	case host == nil || errOld != nil:
		return []string{fmt.Sprintf("it runs Talos %q, which is not a version that recast knows", from)}
	case target == nil || errWanted != nil:
		return []string{fmt.Sprintf("Talos %q is not a version that recast knows", to)}
	case target.UpgradeableFrom(target) != nil: // the tables do not have this version
		return []string{fmt.Sprintf("this recast does not know Talos %s, neither its upgrades nor its machine configuration: "+
			"use a recast that does, or another talos.version", to)}
	}
	var out []string
	if oldest.Greater(old) {
		out = append(out, fmt.Sprintf("it runs Talos %s, and recast rolls nodes of %s and later: upgrade it with talosctl first", from, oldest))
	}
	if err := target.UpgradeableFrom(host); err != nil {
		out = append(out, fmt.Sprintf("Talos does not support %s → %s (%s): %s", from, to, err, remedy(old, wanted, host)))
	}
	if kubelet == "" || old.Major == wanted.Major && old.Minor == wanted.Minor { // the node already runs this minor version
		return out
	}
	kubernetes, err := compatibility.ParseKubernetesVersion(kubelet)
	if err == nil {
		err = kubernetes.SupportedWith(target)
	}
	if err != nil {
		out = append(out, fmt.Sprintf("Talos %s does not support the Kubernetes that runs (%s): bring Kubernetes to a version that both support first (recast upgrade-k8s), or go to another Talos (talos.version)", to, err))
	}
	return out
}

func remedy(old, wanted *config.VersionContract, host *compatibility.TalosVersion) string {
	if !wanted.Greater(old) {
		return "it cannot be downgraded that far; set talos.version to a newer one"
	}
	for minor := wanted.Minor - 1; minor > old.Minor; minor-- {
		between := fmt.Sprintf("v%d.%d", wanted.Major, minor)
		if step := version(between); step != nil && step.UpgradeableFrom(host) == nil {
			return "upgrade all nodes to " + between + " first"
		}
	}
	return "upgrade it step by step, one minor version at a time"
}

// maxMinor exceeds every minor version, of Talos and of Kubernetes, in this recast's tables.
const maxMinor = 100

// UnsupportedKubernetes implements cluster.Compatibility with Talos' own table.
func (*Client) UnsupportedKubernetes(talos, kubernetes string) string {
	wanted, err := compatibility.ParseKubernetesVersion(kubernetes)
	if err != nil {
		return fmt.Sprintf("Kubernetes %q is not a version that recast knows", kubernetes)
	}
	contract, errContract := config.ParseContractFromVersion(talos)
	oldest, newest := supported(talos)
	switch {
	case errContract != nil || newest == 0:
		return fmt.Sprintf("this recast does not know which Kubernetes Talos %s supports: use a newer recast", talos)
	case wanted.SupportedWith(version(talos)) == nil:
		return ""
	}
	text := fmt.Sprintf("Talos %s supports Kubernetes 1.%d to 1.%d, not %s", talos, oldest, newest, kubernetes)
	for step := 1; step < maxMinor; step++ {
		for _, other := range []int{contract.Minor + step, contract.Minor - step} {
			name := fmt.Sprintf("v%d.%d", contract.Major, other)
			t := version(name)
			if t == nil || wanted.SupportedWith(t) != nil {
				continue
			}
			if step > 1 {
				return fmt.Sprintf("%s: %s does; upgrade Talos step by step first (talos.version, recast roll)", text, name)
			}
			return fmt.Sprintf("%s: roll to Talos %s first (talos.version, recast lock, recast roll)", text, name)
		}
	}
	return text + ", and this recast knows no Talos that does"
}

// supported returns the oldest and the newest minor version of Kubernetes 1 that a Talos supports; 0 if unknown.
func supported(talos string) (oldest, newest int) {
	t := version(talos)
	for minor := range maxMinor {
		k, err := compatibility.ParseKubernetesVersion(fmt.Sprintf("1.%d.0", minor))
		if t == nil || err != nil || k.SupportedWith(t) != nil {
			continue
		}
		if newest == 0 {
			oldest = minor
		}
		newest = minor
	}
	return oldest, newest
}

// version parses a version of Talos; nil if it is invalid.
func version(talos string) *compatibility.TalosVersion {
	v, err := compatibility.ParseTalosVersion(&machineapi.VersionInfo{Tag: talos})
	if err != nil {
		return nil
	}
	return v
}

// NewestRelease returns the newest of some versions that is not a pre-release, "" if all are.
func NewestRelease(versions []string) string {
	newest := ""
	for _, v := range versions {
		if semver.IsValid(v) && semver.Prerelease(v) == "" && semver.Compare(v, newest) > 0 {
			newest = v
		}
	}
	return newest
}

// NextKubernetes returns the first release of the minor version after that of kubernetes, if the given Talos supports
// it. It returns "" if Talos does not, or if a version is not known. Kubernetes is upgraded one minor version at a
// time.
func NextKubernetes(talos, kubernetes string) string {
	var minor int
	if _, err := fmt.Sscanf(semver.MajorMinor(kubernetes), "v1.%d", &minor); err != nil {
		return ""
	}
	next := fmt.Sprintf("1.%d.0", minor+1)
	k, err := compatibility.ParseKubernetesVersion(next)
	t := version(talos)
	if err != nil || t == nil || k.SupportedWith(t) != nil {
		return ""
	}
	return "v" + next
}

// Kubernetes reads what the Talos of a configured machine reports about its Kubernetes. The images are those that
// Talos derived from the configuration, which may name none.
func (c *Client) Kubernetes(ctx context.Context, addr netip.Addr) (cluster.MachineKubernetes, error) {
	return ask(ctx, c, addr, readKubernetes)
}

func (c *Client) KubernetesImages(ctx context.Context, addr netip.Addr) (cluster.MachineKubernetes, error) {
	return ask(ctx, c, addr, func(ctx context.Context, s session) (k cluster.MachineKubernetes, err error) {
		k.Revisions = map[cluster.Component]uint64{}
		if k.UUID, _, err = readSMBIOS(ctx, s); err == nil {
			err = readEach(ctx, s, &k, readStaticPods, readProxy, readKubelet)
		}
		return k, err
	})
}

func readKubernetes(ctx context.Context, s session) (cluster.MachineKubernetes, error) {
	var m cluster.Machine
	if err := readEach(ctx, s, &m, readVersion, readHardware, readBootID); err != nil {
		return cluster.MachineKubernetes{}, err
	}
	k := cluster.MachineKubernetes{UUID: m.UUID, TalosVersion: m.TalosVersion, BootID: m.BootID, Revisions: map[cluster.Component]uint64{}}
	if err := readEach(ctx, s, &k, readStaticPods, readProxy, readKubelet, readKubeletHealth, readPending); err != nil {
		return cluster.MachineKubernetes{}, err
	}
	return k, nil
}

// readEach runs reads that fill in parts of the same value, one after the other.
func readEach[T any](ctx context.Context, s session, into *T, reads ...func(context.Context, session, *T) error) error {
	for _, read := range reads {
		if err := read(ctx, s, into); err != nil {
			return err
		}
	}
	return nil
}

func readStaticPods(ctx context.Context, s session, k *cluster.MachineKubernetes) error {
	apiServer, found, err := podConfig[*k8s.APIServerConfig](ctx, s, k8s.APIServerConfigType, k8s.APIServerID)
	if found {
		k.APIPort = apiServer.TypedSpec().LocalPort
		k.Images.APIServer, k.Revisions[cluster.APIServer] = apiServer.TypedSpec().Image, apiServer.Metadata().Version().Value()
	}
	manager, found, errManager := podConfig[*k8s.ControllerManagerConfig](ctx, s, k8s.ControllerManagerConfigType, k8s.ControllerManagerID)
	if found && manager.TypedSpec().Enabled {
		k.Images.ControllerManager, k.Revisions[cluster.ControllerManager] = manager.TypedSpec().Image, manager.Metadata().Version().Value()
	}
	scheduler, found, errScheduler := podConfig[*k8s.SchedulerConfig](ctx, s, k8s.SchedulerConfigType, k8s.SchedulerID)
	if found && scheduler.TypedSpec().Enabled {
		k.Images.Scheduler, k.Revisions[cluster.Scheduler] = scheduler.TypedSpec().Image, scheduler.Metadata().Version().Value()
	}
	return cmp.Or(err, errManager, errScheduler)
}

// podConfig reads the configuration of a static pod; the pod carries the revision of that configuration. Since 1.14
// its ID has a prefix (watchControlPlaneConfig in pkg/cluster/kubernetes/talos_managed.go).
func podConfig[T resource.Resource](ctx context.Context, s session, kind resource.Type, id resource.ID) (r T, found bool, err error) {
	all, err := list[T](ctx, s, resource.NewMetadata(k8s.ControlPlaneNamespaceName, kind, "", resource.VersionUndefined))
	if r, found = byID(all, k8s.FinalPrefix+id); !found {
		r, found = byID(all, id)
	}
	return r, found, err
}

var readProxy = filling(k8s.NewBootstrapManifestsConfig().Metadata(), func(k *cluster.MachineKubernetes, manifests *k8s.BootstrapManifestsConfig) {
	if manifests.TypedSpec().ProxyEnabled {
		k.Images.KubeProxy = manifests.TypedSpec().ProxyImage
	}
})

var readKubelet = filling(k8s.NewKubeletSpec(k8s.NamespaceName, k8s.KubeletID).Metadata(), func(k *cluster.MachineKubernetes, spec *k8s.KubeletSpec) {
	k.Images.Kubelet = spec.TypedSpec().Image
})

func readKubeletHealth(ctx context.Context, s session, k *cluster.MachineKubernetes) error {
	service, found, err := get[*v1alpha1.Service](ctx, s, v1alpha1.NewService(k8s.KubeletID).Metadata())
	if err != nil {
		return fmt.Errorf("its kubelet: %w", err)
	}
	k.KubeletHealthy = found && service.TypedSpec().Running && service.TypedSpec().Healthy
	return nil
}

// readPending compares the active configuration with the stored one. A configuration that was tried right after a
// boot can't be detected: see readConfigs.
func readPending(ctx context.Context, s session, k *cluster.MachineKubernetes) error {
	c, err := readConfigs(ctx, s)
	k.Pending = err == nil && !sameConfig(c.Active, c.Stored)
	return err
}

// sameConfig reports whether two configurations have the same content, in whatever form they are written. Unreadable
// configurations must have the same bytes.
func sameConfig(a, b cluster.Secret) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, errX := parseDocuments(a)
	y, errY := parseDocuments(b)
	return errX == nil && errY == nil && reflect.DeepEqual(contents(x), contents(y))
}

func contents(docs []*document) []any {
	return cluster.Each(cluster.Where(docs, func(d *document) bool { return d.node != nil }), func(d *document) any { return d.orig })
}

// RemovedFlags lists flags, feature gates and admission plugins of the machine's static pods and kubelet that the next
// version removes, by Sidero's own table: with one of them a component would not start.
func (c *Client) RemovedFlags(ctx context.Context, addr netip.Addr, controlPlane bool, from, to string) (out []string, err error) {
	path, err := upgrade.NewPath(from, to)
	if err != nil {
		return nil, fault.As(fault.Refused, err)
	}
	if !path.IsSupported() {
		return nil, fault.WithHint(fault.Refusedf("this recast does not know what Kubernetes %s has removed", to), "use a newer recast")
	}
	err = c.call(ctx, addr.String(), func(ctx context.Context, s session) error {
		found, err := removedBy(ctx, path, s.COSI, addr.String(), controlPlane)
		if err != nil {
			return answer(err)
		}
		gates, err := removedKubeletGates(ctx, s, path)
		if err != nil {
			return err
		}
		found.FeatureGates = append(found.FeatureGates, gates...)
		out = removedItems(found, to)
		return nil
	})
	return out, err
}

// removedKubeletGates returns the kubelet's feature gates that the next version removes. Sidero's table has one list
// for all components, but checks only static pods (go-kubernetes upgrade/checks.go, Run). removedKubeletGates
// therefore gives it a pod with the kubelet's gates.
func removedKubeletGates(ctx context.Context, s session, path *upgrade.Path) ([]upgrade.ComponentItem, error) {
	spec, found, err := get[*k8s.KubeletSpec](ctx, s, k8s.NewKubeletSpec(k8s.NamespaceName, k8s.KubeletID).Metadata())
	if err != nil || !found {
		return nil, err
	}
	flag := "--feature-gates=" + strings.Join(kubeletGates(spec.TypedSpec()), ",")
	pod := k8s.NewStaticPod(k8s.NamespaceName, k8s.SchedulerID)
	pod.TypedSpec().Pod = map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"command": []string{flag}}}}}
	shown := state.WrapCore(namespaced.NewState(inmem.Build))
	if err := shown.Create(ctx, pod); err != nil {
		return nil, err
	}
	removed, err := removedBy(ctx, path, shown, "it", true)
	for i := range removed.FeatureGates {
		removed.FeatureGates[i].Component = k8s.KubeletID
	}
	return removed.FeatureGates, err
}

// removedBy returns the items of one machine's resources that an upgrade of Kubernetes removes.
func removedBy(
	ctx context.Context, path *upgrade.Path, st state.State, node string, controlPlane bool,
) (upgrade.ComponentRemovedItemsError, error) {
	here := func(context.Context, string) (state.State, error) { return st, nil }
	planes, workers := []string{node}, []string(nil)
	if !controlPlane {
		planes, workers = workers, planes
	}
	checks, err := upgrade.NewChecksWithStateProvider(path, here, nil, planes, workers, func(string, ...any) {})
	if err == nil {
		err = checks.Run(ctx)
	}
	found, removed := errors.AsType[upgrade.ComponentRemovedItemsError](err)
	if removed {
		err = nil
	}
	return found, err
}

// kubeletGates returns the feature gates in a kubelet's arguments and configuration.
func kubeletGates(spec *k8s.KubeletSpecSpec) (gates []string) {
	for _, arg := range spec.Args {
		if list, ok := strings.CutPrefix(arg, "--feature-gates="); ok {
			gates = append(gates, strings.Split(list, ",")...)
		}
	}
	if configured, ok := spec.Config["featureGates"].(map[string]any); ok {
		gates = slices.AppendSeq(gates, maps.Keys(configured))
	}
	return gates
}

func removedItems(e upgrade.ComponentRemovedItemsError, to string) (out []string) {
	for _, kind := range []struct {
		what, remedy string
		items        []upgrade.ComponentItem
	}{
		{"flag", "take it out of extraArgs", e.CLIFlags},
		{"feature gate", "take it out of feature-gates (featureGates)", e.FeatureGates},
		{"admission plugin", "take it out of enable-admission-plugins", e.AdmissionFlags},
	} {
		for _, i := range kind.items {
			out = append(out, fmt.Sprintf("%s is given the %s %s, which Kubernetes %s no longer has: %s in the machine configuration", i.Component, kind.what, i.Value, to, kind.remedy))
		}
	}
	slices.Sort(out)
	return out
}

// PullImage makes the machine fetch a component's image to the namespace that runs the component: Talos runs the
// kubelet in a separate namespace, the kubelet runs the rest (prePullImages in
// pkg/cluster/kubernetes/talos_managed.go).
func (c *Client) PullImage(ctx context.Context, addr netip.Addr, uuid string, part cluster.Component, image string, say func(string)) error {
	namespace := common.ContainerdNamespace_NS_CRI
	if part == cluster.Kubelet {
		namespace = common.ContainerdNamespace_NS_SYSTEM
	}
	return c.upgrading(ctx, addr, uuid, "nothing was pulled", func(ctx context.Context, s session, silence time.Duration, wait patience) error {
		if silence == 0 {
			wait(patientPullSilence)
			return oldPull(ctx, s, namespace, image)
		}
		return pull(ctx, s, &common.ContainerdInstance{Driver: common.ContainerDriver_CRI, Namespace: namespace}, image, silence, wait, say)
	})
}

// oldPull pulls an image with the only API before 1.13, which sends a single answer.
func oldPull(ctx context.Context, s session, namespace common.ContainerdNamespace, image string) error {
	//lint:ignore SA1019 there is no other before 1.13
	_, err := s.MachineClient.ImagePull(ctx, &machineapi.ImagePullRequest{Namespace: namespace, Reference: image})
	if err != nil {
		return fmt.Errorf("pull %s: %w", image, answer(err))
	}
	return nil
}
