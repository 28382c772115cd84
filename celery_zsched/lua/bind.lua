-- bind: change and read an exchange's bindings. Bindings of queues with a life of their own lapse unless they are renewed.
-- KEYS: bindings
-- ARGV: read ('1': return the bindings), then pairs binding, life: milliseconds; '' for ever; '-' takes the binding away,
--       with a moment behind it unless it lapses later; '~' and milliseconds renews it if it stands
-- RETURNS: when reading, pairs binding, the moment at which it lapses (inf: never); otherwise the bindings that were to
--          be renewed and do not stand
-- RULES: 2, 7
-- @flags allow-oom
local bindings = KEYS[1]
local NOBODY = '\0\0' -- stands for a while where the last binding was taken away, so that the table is not taken for lost
local NOBODY_US = 86400000000
-- @include clock

local changed = call('ZREMRANGEBYSCORE', bindings, '-inf', stamp(now)) -- first: it takes no memory (see claim.lua)
local taken, missing = 0, {}
for at = 2, #ARGV, 2 do
  local binding, life = ARGV[at], ARGV[at + 1]
  changed = changed + 1
  if string.byte(life) == 45 then -- '-'
    local most, lapses = tonumber(string.sub(life, 2)), call('ZSCORE', bindings, binding)
    if not most or (lapses and lapses ~= 'inf' and tonumber(lapses) <= most) then
      taken = taken + call('ZREM', bindings, binding)
    end
  elseif string.byte(life) ~= 126 then -- '~'
    call('ZADD', bindings, life == '' and '+inf' or stamp(now + tonumber(life) * 1000), binding)
  elseif call('ZSCORE', bindings, binding) then
    call('ZADD', bindings, stamp(now + tonumber(string.sub(life, 2)) * 1000), binding)
  else
    missing[#missing + 1] = binding
  end
end
if taken > 0 and call('EXISTS', bindings) == 0 then
  call('ZADD', bindings, stamp(now + NOBODY_US), NOBODY)
end
if changed > 0 then
  local last = call('ZRANGE', bindings, -1, -1, 'WITHSCORES')[2]
  if last == 'inf' then
    call('PERSIST', bindings)
  elseif last then
    call('PEXPIRE', bindings, stamp(math.ceil((tonumber(last) - now) / 1000)))
  end
end
return ARGV[1] == '1' and call('ZRANGE', bindings, 0, -1, 'WITHSCORES') or missing
