-- broadcast: publish to who listens, and keep it for who was cut off for a moment. Who was reached knows by the number.
-- KEYS: backlog
-- ARGV: channel, life (milliseconds), most (how many are kept), payload
-- RETURNS: how many heard it (on this node)
-- RULES: 2, 7
-- @flags allow-oom
local backlog = KEYS[1]
local channel, life, most, payload = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local call = redis.call

call('XTRIM', backlog, 'MAXLEN', most) -- first, since it takes no memory (see claim.lua)
local number = call('XADD', backlog, 'MAXLEN', most, '*', 'm', payload)
call('PEXPIRE', backlog, life)
return call('PUBLISH', channel, number .. ' ' .. payload)
