package talosapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/compatibility"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/etcd"
)

// drainTimeout is Talos' own timeout for draining a node.
const drainTimeout = 5 * time.Minute

// legacyRetries is how often Talos itself retries a missing image.
const legacyRetries = 5

// upgrade is an upgrade that MachineService.Upgrade has accepted.
type upgrade struct {
	image imageName
	then  outcome // kexec or powerCycle
}

// Upgrade implements the API: it pulls the image, checks etcd and answers; then the
// machine drains, installs and reboots by itself.
func (s *machineService) Upgrade(ctx context.Context, req *machineapi.UpgradeRequest) (*machineapi.UpgradeResponse, error) {
	b := s.boot
	name := systemContainerd
	name.ref = req.GetImage()
	name, err := b.pull(ctx, name, legacyRetries, func(cachedImage, float64) {})
	if err != nil {
		return nil, fmt.Errorf("error validating installer image %q: %w", req.GetImage(), err)
	}
	if err := b.checkEtcd(ctx, req); err != nil {
		return nil, err
	}
	then, actor := kexec, ""
	if req.GetRebootMode() == machineapi.UpgradeRequest_POWERCYCLE {
		then = powerCycle
	}
	if req.GetStage() {
		d, ok := systemDisk(b.m.devices())
		if !ok {
			return nil, errors.New("error adding staged upgrade image ref tag: META is missing")
		}
		if err := b.m.editMeta(d.Key, func(meta *metaData) { meta.Staged = req.GetImage() }); err != nil {
			return nil, fmt.Errorf("error adding staged upgrade image ref tag: %w", err)
		}
		actor = b.order(then)
	} else {
		holding(&b.mu, func() { b.upgrade = upgrade{image: name, then: then} })
		actor = b.order(upgrading)
	}
	return &machineapi.UpgradeResponse{Messages: []*machineapi.Upgrade{{Ack: "Upgrade request received", ActorId: actor}}}, nil
}

// checkEtcd refuses to take a control plane down unless every member of etcd is up. Before 1.13, preserve does not
// skip the check (v1alpha1_server.go, Upgrade).
func (b *boot) checkEtcd(ctx context.Context, req *machineapi.UpgradeRequest) error {
	if req.GetForce() || req.GetPreserve() && b.release().lifecycle || !b.config().Machine().Type().IsControlPlane() {
		return nil
	}
	c, err := b.reachEtcd(ctx)
	if err == nil {
		err = b.membersUp(ctx, c)
	}
	if err != nil {
		return fmt.Errorf("error validating etcd for upgrade: %w", err)
	}
	return nil
}

// membersUp does the work of ValidateForUpgrade in Talos' internal/pkg/etcd.
func (b *boot) membersUp(ctx context.Context, c *etcd.Cluster) error {
	members, err := c.Members(ctx)
	if err != nil {
		return err
	}
	if len(members) == 2 {
		return fmt.Errorf("etcd member count(%d) is insufficient to maintain quorum if upgrade commences", len(members))
	}
	for _, m := range members {
		if m.Name == "" {
			return fmt.Errorf("etcd member %016x is not started, all members must be running to perform an upgrade", m.ID)
		}
		if err := b.memberHealth(ctx, c, m); err != nil {
			return fmt.Errorf("etcd member %016x is not healthy; all members must be healthy to perform an upgrade: %w", m.ID, err)
		}
	}
	return nil
}

// memberHealth reads one key from one member, which also needs a quorum.
func (b *boot) memberHealth(ctx context.Context, c *etcd.Cluster, m etcd.Member) error {
	switch {
	case m.Learner:
		return etcd.ErrNotForLearner
	case !c.Answers(m.ID):
		if !b.m.fw.sleep(ctx, healthTimeout) {
			return ctx.Err()
		}
		return context.DeadlineExceeded
	}
	return c.Linearizable(ctx)
}

// runUpgrade runs the sequence of an upgrade that the machine runs itself. Like any fatal error, a failure reboots
// the machine.
func (b *boot) runUpgrade(ctx context.Context) outcome {
	u := guarded(&b.mu, &b.upgrade)
	b.begin("upgrade", b.release().upgrading(u.then))
	if b.stage(ctx, runtime.MachineStageUpgrading, true); ctx.Err() != nil {
		return killed
	}
	b.seq.to("drain")
	b.empty(ctx)
	b.gone()
	b.seq.to("stopServices")
	b.etcdService().stop(errOrderly)
	b.seq.to("upgrade")
	c, ok := b.m.cached(u.image)
	if !ok {
		return b.sequenceFailed(ctx, fmt.Errorf("image %q: not found", u.image.ref))
	}
	if err := b.upgradeDisk(ctx, c, b.grubCmdline(c.image), func(line string) { b.m.console("%s", line) }); err != nil {
		return b.sequenceFailed(ctx, err)
	}
	return u.then
}

// empty cordons the node and evicts its pods, with a timeout.
func (b *boot) empty(ctx context.Context) {
	node := b.registered()
	if node == "" || b.m.fw.o.Drain == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, b.m.fw.scaled(drainTimeout))
	defer cancel()
	if err := b.m.fw.o.Drain(ctx, node); err != nil {
		b.m.console("WARNING: failed to evict pod: %v", err)
	}
}

func (b *boot) sequenceFailed(ctx context.Context, err error) outcome {
	if ctx.Err() != nil {
		return killed
	}
	name := b.seq.name
	return b.fatal(ctx, fmt.Sprintf("fatal sequencer error in %q sequence: code:FATAL message:%q", name, "sequence failed: "+b.seq.fail(err).Error()))
}

// runStaged runs the upgrade that was staged for this boot, if any, with a single attempt.
func (b *boot) runStaged(ctx context.Context) outcome {
	d, _ := systemDisk(b.m.devices())
	name := systemContainerd
	if name.ref = readMeta(d).Staged; name.ref == "" || b.med.entry == "" {
		b.sequence("", "install", nil)
		b.seq.end()
		return carryOn
	}
	b.sequence("", "install", b.release().phases(installPhases))
	b.seq.to("install")
	b.ending = true
	if err := b.m.editMeta(d.Key, func(meta *metaData) { meta.Staged = "" }); err != nil {
		return b.sequenceFailed(ctx, err)
	}
	name, err := b.pull(ctx, name, legacyRetries, func(cachedImage, float64) {})
	if err != nil {
		return b.sequenceFailed(ctx, err)
	}
	c, _ := b.m.cached(name)
	if err := b.upgradeDisk(ctx, c, b.grubCmdline(c.image), func(line string) { b.m.console("%s", line) }); err != nil {
		return b.sequenceFailed(ctx, err)
	}
	return kexec
}

func (b *boot) uncordon(ctx context.Context) {
	node := b.registered()
	if node == "" || b.m.fw.o.Uncordon == nil {
		return
	}
	if err := b.m.fw.o.Uncordon(ctx, node); err != nil && ctx.Err() == nil {
		b.m.console("uncordon: %v", err)
	}
}

// installerTask is the error of a failed installer container.
type installerTask struct{ code int32 }

func (e installerTask) Error() string { return fmt.Sprintf("task failed with exit code %d", e.code) }

// settleTime is the last part of an upgrade on disk; the rest of Times.Copy passes before.
const settleTime = time.Second

// upgradeDisk runs an installer image on an installed machine: it adds a boot entry and makes it the default; the
// running system continues. After an installerTask error nothing has changed.
//
// The steps are the installer's, and power may fail between any two of them:
//  1. drop every entry except the entry to keep
//  2. write the new entry
//  3. make the new entry the default
//  4. put the name of the kept entry into META, where a failing new system finds it
func (b *boot) upgradeDisk(ctx context.Context, c cachedImage, cmdline string, say func(string)) error {
	img := c.image
	d, ok := systemDisk(b.m.devices())
	if !ok {
		return errors.New("system disk not found")
	}
	say(fmt.Sprintf("running Talos installer %s", img.TalosVersion))
	if err := b.preflight(img); err != nil {
		say(fmt.Sprintf("Error: %v", err))
		return installerTask{1}
	}
	if b.m.fw.hub.defectOf(img, c.refs...) == InstallerFails {
		say("Error: failed to copy boot assets: input/output error")
		return installerTask{1}
	}
	entry, fallback := bootEntry{UKI: c.uki, Cmdline: cmdline}, ""
	if err := editJSON(b.m, d.Key, labelEFI, func(l *loader) {
		entry.Name = l.nextName(img.TalosVersion)
		fallback = b.keepOne(l, img.TalosVersion, say)
	}); err != nil {
		return err
	}
	steps := []struct {
		after time.Duration
		do    func() error
	}{
		{b.m.fw.o.Times.Copy - 2*settleTime, func() error {
			say("copying boot assets to " + entry.Name)
			return editJSON(b.m, d.Key, labelEFI, func(l *loader) { l.Entries = append(l.Entries, entry) })
		}},
		{settleTime, func() error {
			say("updating EFI variables")
			return b.m.setDefault(d.Key, entry.Name)
		}},
		{settleTime, func() error { return b.m.editMeta(d.Key, func(meta *metaData) { meta.Upgrade = fallback }) }},
	}
	for _, s := range steps {
		if !b.m.spend(ctx, "install", s.after) {
			return context.Cause(ctx)
		}
		if err := s.do(); err != nil {
			return err
		}
	}
	say(fmt.Sprintf("installation of %s complete", img.TalosVersion))
	return nil
}

// keepOne removes old entries. Installers of Talos 1.14 keep the running entry; older installers keep the default
// entry, so that a second upgrade without a reboot in between removes the running system from the disk (Upgrade in
// sdboot.go).
func (b *boot) keepOne(l *loader, installer string, say func(string)) string {
	kept, ok := l.entry(b.m.defaultEntry(*l))
	if running, found := l.entry(b.med.entry); found && (!ok || !releaseOf(installer).keepsDefault) {
		kept = running
	}
	l.Entries = slices.DeleteFunc(l.Entries, func(e bootEntry) bool {
		old := !strings.EqualFold(e.Name, kept.Name)
		if old {
			say("removing old UKI: " + e.Name)
		}
		return old
	})
	return kept.Name
}

// preflight makes the installer's check of the running version.
func (b *boot) preflight(img artefact.Image) error {
	version := func(tag string) (*compatibility.TalosVersion, error) {
		return compatibility.ParseTalosVersion(&machineapi.VersionInfo{Tag: tag})
	}
	host, err := version(b.med.image.TalosVersion)
	if err != nil {
		return err
	}
	target, err := version(img.TalosVersion)
	if err != nil {
		return err
	}
	if err := target.UpgradeableFrom(host); err != nil {
		return fmt.Errorf("pre-flight checks failed: %w", err)
	}
	return nil
}

// lifecycleService installs systems beside the running system. Talos has the service since 1.13.
type lifecycleService struct {
	machineapi.UnimplementedLifecycleServiceServer
	boot *boot
}

var _ machineapi.LifecycleServiceServer = (*lifecycleService)(nil)

// Upgrade implements the API. It runs an image that was pulled before, checks only the machine itself, and does not
// reboot. The installer runs to its end even if the caller is gone (container.go in lifecycle).
func (s *lifecycleService) Upgrade(req *machineapi.LifecycleServiceUpgradeRequest, srv grpc.ServerStreamingServer[machineapi.LifecycleServiceUpgradeResponse]) error {
	b := s.boot
	if !b.installing.TryLock() {
		return status.Error(codes.FailedPrecondition, "another installation/upgrade is already in progress")
	}
	defer b.installing.Unlock()
	if _, ok := systemDisk(b.m.devices()); !ok {
		return status.Error(codes.FailedPrecondition, "machine is not installed")
	}
	ref := req.GetSource().GetImageName()
	if ref == "" {
		return status.Error(codes.InvalidArgument, "installer image name is required")
	}
	name, err := containerd(req.GetContainerd())
	if err != nil {
		return status.Errorf(codes.Internal, "upgrade failed: %v", err)
	}
	name.ref = ref
	c, ok := b.m.cached(name)
	if !ok {
		return status.Errorf(codes.Internal, "upgrade failed: installer image %q not found in containerd store: image %q: not found", ref, ref)
	}
	ctx, cancel := b.life()
	defer cancel()
	// Talos hands no machine configuration to the installer, which then takes the boot image's arguments
	// (talos#13967; cmd/installer/cmd/installer/install.go, runInstallCmd).
	err = b.upgradeDisk(ctx, c, "", func(line string) {
		b.m.console("%s", line)
		// the caller may be gone
		_ = srv.Send(&machineapi.LifecycleServiceUpgradeResponse{Progress: &machineapi.LifecycleServiceInstallProgress{
			Response: &machineapi.LifecycleServiceInstallProgress_Message{Message: line + "\n"},
		}})
	})
	var code int32
	if failed, ok := errors.AsType[installerTask](err); ok {
		code, err = failed.code, nil
	}
	if err != nil {
		return status.Errorf(codes.Internal, "upgrade failed: %v", err)
	}
	exit := &machineapi.LifecycleServiceUpgradeResponse{Progress: &machineapi.LifecycleServiceInstallProgress{
		Response: &machineapi.LifecycleServiceInstallProgress_ExitCode{ExitCode: code},
	}}
	if err := srv.Send(exit); err != nil {
		return fmt.Errorf("send exit code: %w", err)
	}
	return nil
}

var errNoPrevious = errors.New("previous UKI not found")

// Rollback implements the API: the other entry becomes the default, even if the running system's probation has ended.
func (s *machineService) Rollback(context.Context, *machineapi.RollbackRequest) (*machineapi.RollbackResponse, error) {
	d, ok := systemDisk(s.boot.m.devices())
	if !ok {
		return nil, status.Error(codes.FailedPrecondition, "system disk not found")
	}
	if err := s.boot.m.revertLoader(d); err != nil {
		return nil, err
	}
	s.boot.order(kexec)
	return &machineapi.RollbackResponse{Messages: []*machineapi.Rollback{{}}}, nil
}

// revertLoader makes the other entry the default.
func (m *machine) revertLoader(d device) error {
	l, _ := decoded[loader](d.disk, labelEFI)
	now, _ := m.selected(l)
	previous, ok := l.other(now.Name)
	if !ok {
		return errNoPrevious
	}
	return m.setDefault(d.Key, previous)
}

// revertUpgrade undoes an upgrade if META still has the fallback entry.
func (m *machine) revertUpgrade() error {
	d, ok := systemDisk(m.devices())
	if !ok {
		return nil
	}
	label := readMeta(d).Upgrade
	if label == "" {
		m.console("no state to revert bootloader")
		return nil
	}
	m.console("reverting failed upgrade, switching to %q", label)
	if err := m.revertLoader(d); err != nil {
		return err
	}
	return m.editMeta(d.Key, func(meta *metaData) { meta.Upgrade = "" })
}

// dropFallback ends an upgrade's probation, when the machine is running and ready for the first time in a boot. A
// later upgrade has its own probation.
func (m *machine) dropFallback() {
	d, ok := systemDisk(m.devices())
	if !ok || readMeta(d).Upgrade == "" {
		return
	}
	if err := m.editMeta(d.Key, func(meta *metaData) { meta.Upgrade = "" }); err != nil {
		m.console("remove fallback entry: %v", err)
		return
	}
	m.console("removing fallback entry")
}

// Reset implements the API: it checks what to wipe and answers; then the machine leaves
// its cluster, wipes, and reboots or powers off.
func (s *machineService) Reset(_ context.Context, req *machineapi.ResetRequest) (*machineapi.ResetResponse, error) {
	b := s.boot
	if err := b.checkReset(req); err != nil {
		return nil, err
	}
	holding(&b.mu, func() { b.reset = req })
	return &machineapi.ResetResponse{Messages: []*machineapi.Reset{{ActorId: b.order(resetting)}}}, nil
}

func (b *boot) checkReset(req *machineapi.ResetRequest) error {
	devs := b.m.devices()
	if len(req.GetUserDisksToWipe()) > 0 && req.GetMode() == machineapi.ResetRequest_SYSTEM_DISK {
		return errors.New("reset failed: invalid input, wipe mode SYSTEM_DISK doesn't support UserDisksToWipe parameter")
	}
	system, _ := systemDisk(devs)
	for _, name := range req.GetUserDisksToWipe() {
		switch i := slices.IndexFunc(devs, func(d device) bool { return d.path() == name }); {
		case i < 0:
			return fmt.Errorf("reset user disk failed: device %s wasn't found", name)
		case devs[i].CDROM:
			return fmt.Errorf("reset user disk failed: device %s is readonly", name)
		case devs[i].Key == system.Key:
			return fmt.Errorf("reset user disk failed: device %s is the system disk", name)
		}
	}
	if len(req.GetSystemPartitionsToWipe()) > 0 && req.GetMode() == machineapi.ResetRequest_USER_DISKS {
		return errors.New("reset failed: invalid input, wipe mode USER_DISKS doesn't support SystemPartitionsToWipe parameter")
	}
	for _, p := range req.GetSystemPartitionsToWipe() {
		if !slices.ContainsFunc(volumesOf(b.config()), func(v volume) bool { return v.id == p.GetLabel() }) {
			return fmt.Errorf("failed to get volume status with label %q: resource VolumeStatuses.block.talos.dev(runtime/%s@undefined) doesn't exist", p.GetLabel(), p.GetLabel())
		}
	}
	return nil
}

// runReset runs the sequence of a reset. If the sequence fails, the machine stays up without its services.
func (b *boot) runReset(ctx context.Context) outcome {
	req := guarded(&b.mu, &b.reset)
	b.begin("reset", b.release().resetting(req, b.config().Machine().Type().IsControlPlane()))
	if b.stage(ctx, runtime.MachineStageResetting, false); ctx.Err() != nil {
		return killed
	}
	if req.GetGraceful() {
		b.seq.to("drain")
		b.empty(ctx)
	}
	b.gone()
	if req.GetGraceful() && b.config().Machine().Type().IsControlPlane() {
		b.seq.to("leave")
		c, err := b.reachEtcd(ctx)
		if err == nil {
			err = b.leaveEtcd(ctx, c)
		}
		if err != nil {
			b.m.console("reset failed: %v", b.seq.fail(fmt.Errorf("failed to leave cluster: %w", err)))
			return b.m.dark(ctx)
		}
	}
	b.seq.to("stopEverything")
	b.etcdService().stop(errOrderly)
	for _, phase := range []string{"forceCleanup", "reset", "resetSpec"} {
		b.seq.to(phase)
	}
	if err := b.wipe(req); err != nil {
		b.m.console("reset failed: %v", b.seq.fail(err))
		return b.m.dark(ctx)
	}
	switch {
	case !req.GetReboot():
		return powerOff
	case len(req.GetSystemPartitionsToWipe()) > 0: // the boot partition remains
		return kexec
	}
	return powerCycle
}

// wipe wipes the requested partitions, or the whole system disk, and user disks.
func (b *boot) wipe(req *machineapi.ResetRequest) error {
	devs := b.m.devices()
	for _, d := range devs {
		if !slices.Contains(req.GetUserDisksToWipe(), d.path()) {
			continue
		}
		if err := b.m.rewrite(d.Key, func(artefact.Disk) artefact.Disk { return artefact.Disk{} }); err != nil {
			return err
		}
	}
	if req.GetMode() == machineapi.ResetRequest_USER_DISKS {
		return nil
	}
	if len(req.GetSystemPartitionsToWipe()) == 0 {
		d, ok := systemDisk(devs)
		if !ok {
			return nil
		}
		return b.m.rewrite(d.Key, func(artefact.Disk) artefact.Disk { return artefact.Disk{} })
	}
	for _, spec := range req.GetSystemPartitionsToWipe() {
		p, ok := locate(devs, spec.GetLabel())
		if !ok || !spec.GetWipe() {
			continue
		}
		if err := b.m.rewrite(p.dev.Key, func(d artefact.Disk) artefact.Disk { return formatted(d, p.index-1) }); err != nil {
			return err
		}
	}
	return nil
}

// formatted returns the disk with a new, empty file system in one of its partitions: the next boot formats a wiped
// partition in the same way.
func formatted(d artefact.Disk, index int) artefact.Disk {
	d.Partitions = slices.Clone(d.Partitions)
	p := &d.Partitions[index]
	fresh := newPartition(p.Label, p.Filesystem, nil)
	fresh.UUID = p.UUID
	*p = fresh
	return d
}

// imageAge is how long Talos keeps an unused image in its own namespaces: Talos checks every 15 minutes, and removes
// an image an hour after it first found the image unused (controllers/cri/image_gc.go).
const imageAge = 75 * time.Minute

// ErrNoImage is the error of Options.PullInstaller and Options.ResolveImage for an image
// that the registry does not have.
var ErrNoImage = errors.New("not found")

// Talos' retries of an image pull (containers/image/image.go).
const (
	pullTimeout  = 20 * time.Minute
	pullInterval = 5 * time.Second // doubled each time
)

// imageStore is containerd's content on each EPHEMERAL volume, by the volume's partition UUID. The disk's content
// does not include it: a lost image cache does no harm.
type imageStore struct {
	mu      sync.Mutex
	volumes map[string]map[imageName]cachedImage
}

// imageName is an image in one namespace of one containerd.
type imageName struct {
	driver    common.ContainerDriver
	namespace common.ContainerdNamespace
	ref       string
}

type cachedImage struct {
	image  artefact.Image
	refs   []string // references that it was pulled by
	digest string   // "sha256:…"; empty if unknown
	uki    string   // SHA-256 of the boot image: see bootImages
	size   int64
	pulled time.Time
}

// systemContainerd is where Talos itself stores installers.
var systemContainerd = imageName{driver: common.ContainerDriver_CONTAINERD, namespace: common.ContainerdNamespace_NS_SYSTEM}

// containerd returns the containerd and namespace that a request names.
func containerd(c *common.ContainerdInstance) (imageName, error) {
	switch c.GetDriver() {
	case common.ContainerDriver_CONTAINERD, common.ContainerDriver_CRI:
	default:
		return imageName{}, status.Errorf(codes.InvalidArgument, "invalid containerd driver %s", c.GetDriver())
	}
	switch c.GetNamespace() {
	case common.ContainerdNamespace_NS_SYSTEM:
	case common.ContainerdNamespace_NS_CRI:
		if c.GetDriver() == common.ContainerDriver_CONTAINERD {
			return imageName{}, status.Error(codes.InvalidArgument, "cannot use CRI namespace with containerd driver")
		}
	default:
		return imageName{}, status.Errorf(codes.InvalidArgument, "invalid containerd namespace %s", c.GetNamespace())
	}
	return imageName{driver: c.GetDriver(), namespace: c.GetNamespace()}, nil
}

// isFull reports whether the machine has a volume for images that has no free space.
func (m *machine) isFull() bool {
	_, ok := locate(m.devices(), labelEphemeral)
	return ok && m.has().Full
}

// images returns the machine's cache; nil without EPHEMERAL. The mutex of the images must be held.
func (m *machine) images() map[imageName]cachedImage {
	p, ok := locate(m.devices(), labelEphemeral)
	if !ok {
		return nil
	}
	all := m.fw.images.volumes
	if all[p.part.UUID] == nil {
		all[p.part.UUID] = map[imageName]cachedImage{}
	}
	maps.DeleteFunc(all[p.part.UUID], func(name imageName, c cachedImage) bool {
		return name.namespace == common.ContainerdNamespace_NS_SYSTEM && name.ref != m.runs.Load() && time.Since(c.pulled) >= m.fw.scaled(imageAge)
	})
	return all[p.part.UUID]
}

func (m *machine) cached(name imageName) (cachedImage, bool) {
	m.fw.images.mu.Lock()
	defer m.fw.images.mu.Unlock()
	c, ok := m.images()[name]
	return c, ok
}

// store stores an image under all of its names: the reference, the digest, and the
// repository at the digest (manageAliases in containers/image/image.go).
func (m *machine) store(name imageName, c cachedImage) {
	m.fw.images.mu.Lock()
	defer m.fw.images.mu.Unlock()
	cache := m.images()
	if cache == nil {
		return
	}
	names := []string{name.ref}
	if c.digest != "" {
		repository, _, _ := strings.Cut(name.ref, "@")
		if !strings.Contains(name.ref, "@") {
			repository = repository[:strings.LastIndexByte(repository, ':')]
		}
		names = append(names, c.digest, repository+"@"+c.digest)
	}
	for _, ref := range names {
		cache[imageName{driver: name.driver, namespace: name.namespace, ref: ref}] = c
	}
}

func (m *machine) list(in imageName) ([]string, []cachedImage) {
	m.fw.images.mu.Lock()
	defer m.fw.images.mu.Unlock()
	var refs []string
	var images []cachedImage
	cache := m.images()
	for _, name := range slices.SortedFunc(maps.Keys(cache), func(a, b imageName) int { return cmp.Compare(a.ref, b.ref) }) {
		if name.driver == in.driver && name.namespace == in.namespace {
			refs, images = append(refs, name.ref), append(images, cache[name])
		}
	}
	return refs, images
}

// normalRef returns a reference as containerd stores it: with a registry, and with either a digest or a tag
// (ParseDockerRef of distribution).
func normalRef(ref string) (string, error) {
	name, digest, pinned := strings.Cut(ref, "@")
	if name == "" || strings.ContainsAny(ref, " \t\n") || pinned && !strings.HasPrefix(digest, "sha256:") {
		return "", fmt.Errorf("failed to parse image reference %q: invalid reference format", ref)
	}
	tag := ""
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name, tag = name[:i], name[i+1:]
	}
	switch host, _, deep := strings.Cut(name, "/"); {
	case !deep:
		name = "docker.io/library/" + name
	case !strings.ContainsAny(host, ".:") && host != "localhost":
		name = "docker.io/" + name
	}
	if pinned {
		return name + "@" + digest, nil
	}
	return name + ":" + cmp.Or(tag, "latest"), nil
}

// pull fetches an image unless it is stored already. It retries notFoundRetries times if the registry does not have
// the image, and until a timeout after other errors. progress gets the share of the image that has arrived.
func (b *boot) pull(ctx context.Context, name imageName, notFoundRetries int, progress func(cachedImage, float64)) (imageName, error) {
	ref := name.ref
	normal, err := normalRef(ref)
	if err != nil {
		return name, err
	}
	name.ref = normal
	if _, ok := b.m.cached(name); ok {
		return name, nil
	}
	c, err := b.fetchPatiently(ctx, name.ref, ref, notFoundRetries)
	if err != nil {
		return name, err
	}
	return name, b.receive(ctx, name, c, progress)
}

// fetchPatiently asks the registry repeatedly, as Talos does for its own pulls. Talos' API (notFoundRetries is 0)
// tries only once since 1.14 (Pull and PullWithRetriesAndTimeout in containers/image/pull.go).
func (b *boot) fetchPatiently(ctx context.Context, ref, given string, notFoundRetries int) (cachedImage, error) {
	if notFoundRetries > 0 || b.release().patientPull {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, b.m.fw.scaled(pullTimeout))
		defer cancel()
	}
	missing := 0
	for pause := pullInterval; ; pause *= 2 {
		c, err := b.m.fetch(ctx, ref, given, b.med.image.Arch)
		switch {
		case err == nil:
			return c, nil
		case errors.Is(err, errFull):
			err = fmt.Errorf("failed to pull image %q: %w", ref, err)
		default:
			err = fmt.Errorf("failed to pull image %q: failed to resolve reference %q: %w", ref, ref, err)
		}
		if errors.Is(err, ErrNoImage) {
			missing++
		}
		if missing > notFoundRetries || notFoundRetries == 0 && !b.release().patientPull {
			return c, err
		}
		b.m.console("%v", err)
		if !b.m.fw.sleep(ctx, pause) {
			return c, fmt.Errorf("timeout: %w", err)
		}
	}
}

// receive waits for the duration of a download and stores the image.
func (b *boot) receive(ctx context.Context, name imageName, c cachedImage, progress func(cachedImage, float64)) error {
	const parts = 4
	for i := range parts {
		progress(c, float64(i)/parts)
		if !b.m.spend(ctx, "pull", b.m.fw.o.Times.Pull/parts) {
			return context.Cause(ctx)
		}
	}
	c.pulled = time.Now()
	b.m.store(name, c)
	progress(c, 1)
	return nil
}

// fetch asks the registry; given is the caller's form of the reference.
func (m *machine) fetch(ctx context.Context, ref, given, arch string) (cachedImage, error) {
	defect := m.defectOf(given)
	if defect == Endless {
		<-ctx.Done()
		return cachedImage{}, ctx.Err()
	}
	if err := refused(defect, ref); err != nil {
		return cachedImage{}, err
	}
	if c, public, err := m.publicImage(ref); public {
		if err == nil && m.isFull() {
			err = errFull
		}
		return c, err
	}
	uki, err := m.fw.o.PullInstaller(ctx, ref, arch)
	if err != nil {
		return cachedImage{}, fmt.Errorf("%s: %w", ref, err)
	}
	img, err := artefact.ReadUKI(uki)
	if err != nil {
		return cachedImage{}, fmt.Errorf("%s: %w", ref, err)
	}
	m.fw.hub.pulled(given, img)
	if err := refused(m.fw.hub.defectOf(img, ref, given), ref); err != nil {
		return cachedImage{}, err
	}
	if m.isFull() {
		return cachedImage{}, errFull
	}
	c := cachedImage{image: img, refs: []string{ref, given}, size: int64(len(uki))}
	_, c.digest, _ = strings.Cut(ref, "@")
	if c.digest == "" && m.fw.o.ResolveImage != nil {
		c.digest, err = m.fw.o.ResolveImage(ctx, ref)
	}
	if err == nil {
		c.uki, err = m.fw.boots.keep(uki)
	}
	if err != nil {
		return cachedImage{}, fmt.Errorf("%s: %w", ref, err)
	}
	return c, nil
}

// refused returns the registry's error for an image with that defect; nil for the other defects.
func refused(d Defect, ref string) error {
	switch d {
	case Unpullable:
		return fmt.Errorf("%s: %w", ref, ErrNoImage)
	case Unauthorized:
		name, digest, _ := strings.Cut(ref, "@")
		host, repository, _ := strings.Cut(name, "/")
		return fmt.Errorf("unexpected status from HEAD request to https://%s/v2/%s/manifests/%s: 401 Unauthorized", host, repository, digest)
	}
	return nil
}

// imageService is the part of the image API that upgrades use. Talos has the service since 1.13.
type imageService struct {
	machineapi.UnimplementedImageServiceServer
	boot *boot
}

var _ machineapi.ImageServiceServer = (*imageService)(nil)

func (s *imageService) List(req *machineapi.ImageServiceListRequest, srv grpc.ServerStreamingServer[machineapi.ImageServiceListResponse]) error {
	in, err := containerd(req.GetContainerd())
	if err != nil {
		return err
	}
	refs, images := s.boot.m.list(in)
	for i, c := range images {
		if err := srv.Send(&machineapi.ImageServiceListResponse{
			Name: refs[i], Digest: c.digest, Size: c.size, CreatedAt: timestamppb.New(c.pulled),
		}); err != nil {
			return err
		}
	}
	return nil
}

// Pull implements the API: progress, then the name that the image is stored under.
func (s *imageService) Pull(req *machineapi.ImageServicePullRequest, srv grpc.ServerStreamingServer[machineapi.ImageServicePullResponse]) error {
	in, err := containerd(req.GetContainerd())
	if err != nil {
		return err
	}
	in.ref = req.GetImageRef()
	var broken error
	name, err := s.boot.pull(srv.Context(), in, 0, func(c cachedImage, share float64) {
		if broken == nil {
			broken = srv.Send(layerProgress(c, share))
		}
	})
	switch {
	case err != nil:
		return pullError(err)
	case broken != nil:
		return broken
	}
	return srv.Send(&machineapi.ImageServicePullResponse{Response: &machineapi.ImageServicePullResponse_Name{Name: name.ref}})
}

func pullError(err error) error {
	if errors.Is(err, ErrNoImage) {
		return status.Errorf(codes.NotFound, "error pulling image: %s", err)
	}
	return err
}

// ImagePull implements the API that preceded ImageService.
func (s *machineService) ImagePull(ctx context.Context, req *machineapi.ImagePullRequest) (*machineapi.ImagePullResponse, error) {
	in, err := containerd(&common.ContainerdInstance{Driver: common.ContainerDriver_CRI, Namespace: req.GetNamespace()})
	if err != nil {
		return nil, err
	}
	in.ref = req.GetReference()
	_, err = s.boot.pull(ctx, in, 0, func(cachedImage, float64) {})
	return &machineapi.ImagePullResponse{Messages: []*machineapi.ImagePull{{}}}, pullError(err)
}

// layerProgress returns the progress of the one relevant layer.
func layerProgress(c cachedImage, share float64) *machineapi.ImageServicePullResponse {
	layer := &machineapi.ImageServicePullLayerProgress{
		Status: machineapi.ImageServicePullLayerProgress_DOWNLOADING, Offset: int64(share * float64(c.size)), Total: c.size,
	}
	if share == 1 {
		layer.Status = machineapi.ImageServicePullLayerProgress_EXTRACT_COMPLETE
	}
	return &machineapi.ImageServicePullResponse{Response: &machineapi.ImageServicePullResponse_PullProgress{
		PullProgress: &machineapi.ImageServicePullProgress{LayerId: c.uki[:12], Progress: layer},
	}}
}

// containerSize is the size of images other than installers.
const containerSize = 28 << 20

// publicImage finds an image in the public registries that the lab does not serve; public says whether the image
// belongs to one of these registries.
func (m *machine) publicImage(ref string) (c cachedImage, public bool, err error) {
	if m.fw.o.PublicImage == nil {
		return c, false, nil
	}
	c.digest, err = m.fw.o.PublicImage(ref)
	if errors.Is(err, errors.ErrUnsupported) {
		return c, false, nil
	}
	if err != nil {
		return c, true, fmt.Errorf("%s: %w", ref, err)
	}
	c.size, c.uki, c.refs = containerSize, strings.TrimPrefix(c.digest, "sha256:"), []string{ref}
	return c, true, nil
}

// pullKubelet pulls the kubelet's image, retrying as Talos does. With atOnce, the pull is part of the services' start
// and takes no time, unless the image is broken.
func (b *boot) pullKubelet(ctx context.Context, image string, atOnce bool) error {
	name := imageName{driver: common.ContainerDriver_CRI, namespace: common.ContainerdNamespace_NS_SYSTEM, ref: image}
	if err := b.pullAtOnce(ctx, name, atOnce); !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	_, err := b.pull(ctx, name, legacyRetries, func(cachedImage, float64) {})
	return err
}

// pullForPod makes one attempt of the kubelet to pull a pod's image.
func (b *boot) pullForPod(ctx context.Context, name imageName, atOnce bool) error {
	if err := b.pullAtOnce(ctx, name, atOnce); !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	given := name.ref
	normal, err := normalRef(given)
	if err != nil {
		return fmt.Errorf("couldn't parse image name %q: invalid reference format", given)
	}
	name.ref = normal
	if _, ok := b.m.cached(name); ok {
		return nil
	}
	c, err := b.m.fetch(ctx, normal, given, b.med.image.Arch)
	if err != nil {
		code := map[bool]codes.Code{true: codes.NotFound, false: codes.Unknown}[errors.Is(err, ErrNoImage)]
		return fmt.Errorf("rpc error: code = %s desc = failed to pull and unpack image %q: failed to resolve reference %q: %w", code, normal, normal, err)
	}
	return b.receive(ctx, name, c, func(cachedImage, float64) {})
}

// pullAtOnce pulls the image without delay. Without atOnce, or if the image is broken, it
// returns errors.ErrUnsupported.
func (b *boot) pullAtOnce(ctx context.Context, name imageName, atOnce bool) error {
	if b.m.fw.o.PublicImage == nil {
		return nil // these images are not checked
	}
	if what := b.m.defectOf(name.ref); !atOnce || what == Unpullable || what == Unauthorized || what == Endless {
		return errors.ErrUnsupported
	}
	normal, err := normalRef(name.ref)
	if err != nil {
		return errors.ErrUnsupported
	}
	name.ref = normal
	if _, ok := b.m.cached(name); ok {
		return nil
	}
	c, public, err := b.m.publicImage(normal)
	if err != nil || !public || ctx.Err() != nil {
		return errors.ErrUnsupported
	}
	c.pulled = time.Now()
	b.m.store(name, c)
	return nil
}
