package talosapi

import (
	"context"
	"errors"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// imageService is the part of the image API that upgrades use. Talos has it since 1.13.
type imageService struct {
	machineapi.UnimplementedImageServiceServer
	boot *boot
}

var _ machineapi.ImageServiceServer = (*imageService)(nil)

// List implements the API.
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
	case errors.Is(err, ErrNoImage):
		return status.Errorf(codes.NotFound, "error pulling image: %s", err)
	case err != nil:
		return err
	case broken != nil:
		return broken
	}
	return srv.Send(&machineapi.ImageServicePullResponse{Response: &machineapi.ImageServicePullResponse_Name{Name: name.ref}})
}

// ImagePull implements the API that preceded ImageService.
func (s *machineService) ImagePull(ctx context.Context, req *machineapi.ImagePullRequest) (*machineapi.ImagePullResponse, error) {
	in, err := containerd(&common.ContainerdInstance{Driver: common.ContainerDriver_CRI, Namespace: req.GetNamespace()})
	if err != nil {
		return nil, err
	}
	in.ref = req.GetReference()
	_, err = s.boot.pull(ctx, in, 0, func(cachedImage, float64) {})
	switch {
	case errors.Is(err, ErrNoImage):
		return nil, status.Errorf(codes.NotFound, "error pulling image: %s", err)
	case err != nil:
		return nil, err
	}
	return &machineapi.ImagePullResponse{Messages: []*machineapi.ImagePull{{}}}, nil
}

// layerProgress is the progress of the one relevant layer.
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
