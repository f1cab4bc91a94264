// Package factory tests recast with the real Image Factory and the real Talos imager, both
// built from their Go modules.
package factory
