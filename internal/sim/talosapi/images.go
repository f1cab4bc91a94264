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
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

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

// cached finds an image by its exact stored name.
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

// list returns the images of one namespace by name.
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
