// Package kubernetes runs recast against a real Kubernetes control plane, built
// from its Go modules, to which the lab's machines bring their kubelets: see the tests.
package kubernetes
