package cri

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/nodeagent/node"
)

// image is one of the node's.
type image struct {
	node.Image

	ref string
}

func (i image) id() string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(i.ref))) }

// user is whose a container is that asks for no user.
func (i image) user() (uid, gid int64, err error) {
	if i.User == "" {
		return 0, 0, nil
	}
	user, group, with := strings.Cut(i.User, ":")
	if uid, err = strconv.ParseInt(user, 10, 32); err == nil && with {
		gid, err = strconv.ParseInt(group, 10, 32)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("the user of image %s is not uid:gid: %w", i.ref, err)
	}
	return uid, gid, nil
}

func (i image) describe() (*runtimeapi.Image, error) {
	uid, _, err := i.user()
	if err != nil {
		return nil, err
	}
	return &runtimeapi.Image{
		Id: i.id(), RepoTags: []string{i.ref}, Spec: &runtimeapi.ImageSpec{Image: i.ref}, Size: 1, Pinned: true,
		Uid: &runtimeapi.Int64Value{Value: uid},
	}, nil
}

// find looks an image up by its reference or its ID, in the node's file as it is now. The
// kubelet adds :latest to a reference without a tag.
func (s images) find(ref string) (image, error) {
	config, err := node.ReadConfig(s.config.File())
	if err != nil {
		return image{}, err
	}
	for _, name := range []string{ref, strings.TrimSuffix(ref, ":latest")} {
		if known, ok := config.Images[name]; ok {
			return image{Image: known, ref: name}, nil
		}
	}
	for name, known := range config.Images {
		if i := (image{Image: known, ref: name}); i.id() == ref {
			return i, nil
		}
	}
	return image{}, status.Errorf(codes.NotFound, "failed to pull and unpack image %q: failed to resolve reference %q: %s: not found", ref, ref, ref)
}

// Images is the runtime's image service.
func (r *Runtime) Images() internalapi.ImageManagerService { return r.images }

// images has all images at hand, so a pull takes no time.
type images struct{ config node.Config }

func (s images) ListImages(context.Context, *runtimeapi.ImageFilter) (list []*runtimeapi.Image, _ error) {
	config, err := node.ReadConfig(s.config.File())
	if err != nil {
		return nil, err
	}
	for ref, known := range config.Images {
		i, err := image{Image: known, ref: ref}.describe()
		if err != nil {
			return nil, err
		}
		list = append(list, i)
	}
	return list, nil
}

func (s images) ImageStatus(_ context.Context, spec *runtimeapi.ImageSpec, _ bool) (*runtimeapi.ImageStatusResponse, error) {
	i, err := s.find(spec.Image)
	if status.Code(err) == codes.NotFound {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	known, err := i.describe()
	return &runtimeapi.ImageStatusResponse{Image: known}, err
}

func (s images) PullImage(_ context.Context, spec *runtimeapi.ImageSpec, _ *runtimeapi.AuthConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	i, err := s.find(spec.Image)
	if err != nil {
		return "", err
	}
	return i.id(), nil
}

func (images) RemoveImage(context.Context, *runtimeapi.ImageSpec) error { return nil }

func (s images) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(s.config.Dir, &fs); err != nil {
		return nil, err
	}
	usage := []*runtimeapi.FilesystemUsage{{
		Timestamp: time.Now().UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: s.config.Dir},
		UsedBytes: &runtimeapi.UInt64Value{}, InodesUsed: &runtimeapi.UInt64Value{},
	}}
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: usage, ContainerFilesystems: usage}, nil
}

func (images) Close(context.Context) error { return nil }
