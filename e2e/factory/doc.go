// Package factory runs recast against the real Image Factory and the real Talos
// imager, both built from their
// Go modules: see the tests.
package factory
