// Package helm renders the manifests of recast-operator with Helm and Kustomize, parses its
// alerts as Prometheus does, and compares the results with each other.
package helm
