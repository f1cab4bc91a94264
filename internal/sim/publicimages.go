package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/compatibility"

	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// The Kubernetes releases that public registries have.
var kubernetesReleases = []string{
	"v1.33.8", "v1.33.9", "v1.34.0", "v1.34.5", "v1.34.6", "v1.35.0", "v1.35.1", "v1.35.2", "v1.35.3", "v1.35.4", "v1.35.5",
	"v1.36.0", "v1.36.1", "v1.36.2", "v1.37.0", "v1.37.1",
}

// kubernetesImages are the repositories of a Kubernetes release.
var kubernetesImages = []string{
	"registry.k8s.io/kube-apiserver", "registry.k8s.io/kube-apiserver-amd64", "registry.k8s.io/kube-controller-manager", "registry.k8s.io/kube-scheduler", "registry.k8s.io/kube-proxy",
	"ghcr.io/siderolabs/kubelet",
}

// CheckKubernetes says why a lab can't start with that Kubernetes on that Talos; nil if
// it can.
func CheckKubernetes(talos, kubernetes string) error {
	if !slices.Contains(kubernetesReleases, kubernetes) {
		return fmt.Errorf("the lab has no images of Kubernetes %s, but of %s", kubernetes, strings.Join(kubernetesReleases, ", "))
	}
	k, err := compatibility.ParseKubernetesVersion(kubernetes)
	if err != nil {
		return fmt.Errorf("read Kubernetes version: %w", err)
	}
	t, err := compatibility.ParseTalosVersion(&machineapi.VersionInfo{Tag: talos})
	if err != nil {
		return fmt.Errorf("read Talos version: %w", err)
	}
	return k.SupportedWith(t)
}

// publicDigest is the digest of an image in a registry that no server of the lab simulates (talosapi.Options.PublicImage).
func publicDigest(ref string) (string, error) {
	sum := sha256.Sum256([]byte(ref))
	digest := "sha256:" + hex.EncodeToString(sum[:])
	host, _, _ := strings.Cut(ref, "/")
	repository, tag := ref[:max(0, strings.LastIndexByte(ref, ':'))], ref[strings.LastIndexByte(ref, ':')+1:]
	switch {
	case slices.Contains(kubernetesImages, repository) && slices.Contains(kubernetesReleases, tag):
		return digest, nil
	case slices.ContainsFunc(kubernetesImages, func(known string) bool { return strings.HasPrefix(known, host+"/") }):
		return "", talosapi.ErrNoImage
	}
	return "", errors.ErrUnsupported
}
