package sietch

import "github.com/sietch-dev/sietch/runtime/api/wire"

// Code is the kind of an error, as the API's document lists them. It is an error
// itself, for errors.Is:
//
//	if errors.Is(err, sietch.NotFound) { … }
type Code = wire.Code

// Error is what the server said of a failure: code, message, hint.
type Error = wire.Error

// ErrProtocol is an answer that is none of this API.
var ErrProtocol = wire.ErrProtocol

// The codes of the API.
const (
	Usage            = wire.Usage
	Unauthorized     = wire.Unauthorized
	Forbidden        = wire.Forbidden
	NotFound         = wire.NotFound
	MethodNotAllowed = wire.MethodNotAllowed
	Busy             = wire.Busy       // held by somebody else, or moved meanwhile
	WrongState       = wire.WrongState // not in the state that this needs
	NotRunning       = wire.NotRunning
	TooLarge         = wire.TooLarge
	MediaType        = wire.MediaType
	WrongHost        = wire.WrongHost
	KeyReused        = wire.KeyReused
	Interrupted      = wire.Interrupted // the server died under the call with this key
	UpgradeRequired  = wire.UpgradeRequired
	RateLimited      = wire.RateLimited
	Quota            = wire.Quota // as many sandboxes as are allowed are there
	Canceled         = wire.Canceled
	Failed           = wire.Failed // for a reason that is no kind of its own
	Corrupt          = wire.Corrupt
	Unreachable      = wire.Unreachable // the service in the sandbox does not answer
	Host             = wire.Host        // the server's host lacks something; see doctor
	ShuttingDown     = wire.ShuttingDown
	Timeout          = wire.Timeout
)
