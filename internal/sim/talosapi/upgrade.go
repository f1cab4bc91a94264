package talosapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/compatibility"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
	if err := b.stage(ctx, runtime.MachineStageUpgrading, true); err != nil {
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

// uncordon uncordons the node if Talos has cordoned it.
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
	if err := b.m.editLoader(d.Key, func(l *loader) {
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
			return b.m.editLoader(d.Key, func(l *loader) { l.Entries = append(l.Entries, entry) })
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
	l, ok := readLoader(d)
	if !ok {
		return errNoPrevious
	}
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
	if err := b.stage(ctx, runtime.MachineStageResetting, false); err != nil {
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
