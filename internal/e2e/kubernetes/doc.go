// Package kubernetes tests recast with a real Kubernetes control plane, built from its Go
// modules, and the kubelets of the lab's machines.
package kubernetes
