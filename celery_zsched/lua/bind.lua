-- bind: change and read an exchange's bindings. Bindings of queues with a life of their own lapse like those.
-- KEYS: bindings
-- ARGV: pairs binding, life (milliseconds; '' for ever; '-' takes the binding away)
-- RETURNS: every binding that stands
-- RULES: 2, 7
-- @flags allow-oom
local bindings = KEYS[1]
-- @include clock

call('ZREMRANGEBYSCORE', bindings, '-inf', stamp(now)) -- first, since it takes no memory (see claim.lua)
for at = 1, #ARGV, 2 do
  local binding, life = ARGV[at], ARGV[at + 1]
  if life == '-' then
    call('ZREM', bindings, binding)
  else
    call('ZADD', bindings, life == '' and '+inf' or stamp(now + tonumber(life) * 1000), binding)
  end
end
return call('ZRANGE', bindings, 0, -1)
